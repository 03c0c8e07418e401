"""Requests that come when they come, in a locustfile of one's own.

Question: What does an arriving user feel at so many requests a second, half of whom want a short answer?
Time: as long as --run-time says
Good: Offered, sent and done agree; the time to first token from the schedule keeps the limit, for each class by itself.

Each of Locust's users is half a request a second here, so `-u 8` is four a second.

    locust -f scenarios/locustfile_open_loop.py --host http://127.0.0.1:8000 --headless -u 8 -r 8 -t 60s
"""

from locust import task

from loadgen import OpenLoopLLMUser


class Arrivals(OpenLoopLLMUser):
    request_rate = 0.5
    arrival = "poisson"

    @task
    async def short_answer(self):
        await self.stream(self.prompt(128), output_tokens=16)

    @task
    async def long_answer(self):
        await self.stream(self.prompt(128), output_tokens=128)
