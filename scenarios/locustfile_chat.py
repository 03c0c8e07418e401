"""Chat with a pause between questions, in a locustfile of one's own.

Question: What do so many people feel who read each answer before they ask again?
Time: as long as --run-time says
Good: The run folder's report says `valid`, the time to first token keeps the limit, and no request failed.

    locust -f scenarios/locustfile_chat.py --host http://127.0.0.1:8000 --headless -u 8 -r 4 -t 60s \\
        --loadgen-slo 'ttft_p95<500ms'
"""

from locust import between, task

from loadgen import LLMUser


class ChatUser(LLMUser):
    wait_time = between(1, 3)

    @task
    async def ask(self):
        await self.stream(self.prompt(128), output_tokens=64)
