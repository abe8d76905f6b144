#!/usr/bin/env python3
"""event_loop.py PROMPT...: all of them at once, in an asyncio program; pieces as they come.

The loop watches the client's socket. Nothing waits in here but the loop itself.
"""

import asyncio
import sys

import cb


class Answers:
    """Hands the client's news to the coroutines that wait for them."""

    def __init__(self, client):
        self.client = client
        self.news = {}  # of each request, an event
        asyncio.get_running_loop().add_reader(client, self._look)
        self._look()

    def _look(self):
        """At the start, and each time the socket is readable."""
        for request in self.client.arm():
            self.news[request].set()

    async def pieces(self, prompt, **wishes):
        """The text that comes after the prompt, piece by piece."""
        request = self.client.submit(prompt, **wishes)
        news = self.news[request] = asyncio.Event()
        n_shown = 0
        while not request.is_done:
            await news.wait()
            news.clear()
            text = request.text()
            if len(text) > n_shown:
                yield text[n_shown:]
            n_shown = len(text)
        if request.error:
            raise request.error


async def show(answers, number, prompt):
    async for piece in answers.pieces(prompt, max_new_tokens=24):
        print(f"[{number}] {piece}")


async def main(prompts):
    with cb.connect(name="event_loop.py") as client:
        answers = Answers(client)
        await asyncio.gather(*(show(answers, i, p) for i, p in enumerate(prompts, 1)))
        asyncio.get_running_loop().remove_reader(client)


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[1:]))
    except cb.Error as e:
        sys.exit(f"event_loop.py: {e}")
