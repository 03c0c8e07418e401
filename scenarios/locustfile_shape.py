"""A mix of users that grows in steps: tags, weights and a shape, in a locustfile of one's own.

Question: Up to how many users of this mix does everybody keep their limit, and who is the first to lose it?
Time: about 65 s
Good: Three levels, one for each step, all valid; the table by class shows that questions about documents wait longest.

    locust -f scenarios/locustfile_shape.py --host http://127.0.0.1:8000 --headless --loadgen-warmup 5s
    locust -f scenarios/locustfile_shape.py --host http://127.0.0.1:8000 --headless --exclude-tags summary
"""

from locust import LoadTestShape, between, tag, task

from loadgen import LLMUser

SECONDS = 20
STEPS = (2, 4, 8)


class Steps(LoadTestShape):
    """So many users for 20 s each."""

    def tick(self):
        step = int(self.get_run_time() // SECONDS)
        return (STEPS[step], 10) if step < len(STEPS) else None


class Reader(LLMUser):
    """Three of four users; asks three times as often as it summarises."""

    weight = 3
    wait_time = between(0.5, 1.5)

    @tag("chat")
    @task(3)
    async def chat(self):
        question = {"role": "user", "content": self.prompt(96)}
        await self.stream([{"role": "system", "content": "Answer briefly."}, question], output_tokens=48)

    @tag("summary")
    @task(1)
    async def summarise(self):
        await self.stream(self.prompt(512), output_tokens=96, extra_body={"temperature": 0.2})


class Researcher(LLMUser):
    """One of four; a long document, then two questions about it."""

    wait_time = between(1, 2)

    @tag("document")
    @task
    async def document(self):
        document = self.prompt(1500)
        for _ in range(2):
            await self.stream(document, output_tokens=64, name="document question")
