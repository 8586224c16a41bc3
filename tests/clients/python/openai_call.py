"""One chat completion with the OpenAI SDK, its settings untouched: openai_call.py BASE_URL LABEL whole|stream"""

import logging
import sys

import openai
from report import Retries, report

base_url, label, delivery = sys.argv[1:]
retries = Retries(logging.getLogger("openai"))
client = openai.OpenAI(base_url=f"{base_url}/v1", api_key="none", default_headers={"X-Label": label})
request = dict(model="stub", messages=[{"role": "user", "content": "word " * 100}])
if delivery == "stream":
    chunks = client.chat.completions.create(**request, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
else:
    text = client.chat.completions.create(**request).choices[0].message.content
report(text, retries)
