// One message with the Anthropic SDK, its settings untouched: anthropic_call.cjs BASE_URL LABEL whole|stream

const Anthropic = require("@anthropic-ai/sdk");
const { Retries, report } = require("./report.cjs");

async function main() {
  const [baseUrl, label, delivery] = process.argv.slice(2);
  const retries = new Retries();
  const client = new Anthropic({
    baseURL: baseUrl,
    apiKey: "none",
    defaultHeaders: { "X-Label": label },
    logger: retries,
    logLevel: "info",
  });
  const request = {
    model: "stub",
    max_tokens: 100,
    messages: [{ role: "user", content: "word ".repeat(100) }],
  };
  const text =
    delivery === "stream"
      ? await client.messages.stream(request).finalText()
      : (await client.messages.create(request)).content[0].text;
  report(text, retries);
}

main();
