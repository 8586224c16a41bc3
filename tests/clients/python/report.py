"""What a call tells the test: one line of JSON with the answer's text and every retry that the SDK logged."""

import json
import logging


class Retries(logging.Handler):
    """Keeps what an SDK logs about retrying, which both do at the level INFO."""

    def __init__(self, logger):
        super().__init__(logging.INFO)
        self.logged = []
        logger.setLevel(logging.INFO)
        logger.addHandler(self)

    def emit(self, record):
        message = record.getMessage()
        if "retry" in message.lower():
            self.logged.append(message)


def report(text, retries):
    print(json.dumps({"text": text, "retries": retries.logged}))
