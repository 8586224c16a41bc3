// One chat completion with the OpenAI SDK, its settings untouched: openai_call.cjs BASE_URL LABEL whole|stream

const OpenAI = require("openai");
const { Retries, report } = require("./report.cjs");

async function main() {
  const [baseUrl, label, delivery] = process.argv.slice(2);
  const retries = new Retries();
  const client = new OpenAI({
    baseURL: `${baseUrl}/v1`,
    apiKey: "none",
    defaultHeaders: { "X-Label": label },
    logger: retries,
    logLevel: "info",
  });
  const request = { model: "stub", messages: [{ role: "user", content: "word ".repeat(100) }] };
  let text = "";
  if (delivery === "stream") {
    for await (const chunk of await client.chat.completions.create({ ...request, stream: true })) {
      text += chunk.choices[0].delta.content ?? "";
    }
  } else {
    text = (await client.chat.completions.create(request)).choices[0].message.content;
  }
  report(text, retries);
}

main();
