"""One message with the Anthropic SDK, its settings untouched: anthropic_call.py BASE_URL LABEL whole|stream"""

import logging
import sys

import anthropic
from report import Retries, report

base_url, label, delivery = sys.argv[1:]
retries = Retries(logging.getLogger("anthropic"))
client = anthropic.Anthropic(base_url=base_url, api_key="none", default_headers={"X-Label": label})
request = dict(model="stub", max_tokens=100, messages=[{"role": "user", "content": "word " * 100}])
if delivery == "stream":
    with client.messages.stream(**request) as stream:
        text = "".join(stream.text_stream)
else:
    text = client.messages.create(**request).content[0].text
report(text, retries)
