// What a call tells the test: one line of JSON with the answer's text and every retry that the SDK logged.

// A logger for an SDK: keeps what it says about retrying, which both do at the level "info".
class Retries {
  logged = [];

  #keep(message) {
    if (/retry/i.test(message)) {
      this.logged.push(message);
    }
  }

  error = (message) => this.#keep(message);
  warn = (message) => this.#keep(message);
  info = (message) => this.#keep(message);
  debug = () => {};
}

function report(text, retries) {
  console.log(JSON.stringify({ text, retries: retries.logged }));
}

module.exports = { Retries, report };
