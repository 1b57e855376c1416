"""A Locust file for the demo model, as anybody would write it: nothing in it knows of Tailproof.

    tailproof serve demo:fraud
    tailproof prove http://localhost:8000/predict --slo "p95 < 50ms" \\
        --locustfile examples/locustfile.py --users 20 --spawn-rate 20 --run-time 30s

or with Locust alone: `locust -f examples/locustfile.py --host http://localhost:8000`.
"""

import random

from locust import FastHttpUser, between, task


class Shop(FastHttpUser):
    """One till: asks about a payment, thinks, asks about the next one."""

    wait_time = between(0.01, 0.05)

    @task(9)
    def one(self) -> None:
        """A single payment."""
        self.client.post("/predict", json=payment())

    @task(1)
    def several(self) -> None:
        """A few at once; an answer must have as many scores."""
        payments = [payment() for _ in range(random.randint(2, 8))]
        with self.client.post("/predict", json=payments, catch_response=True) as answer:
            if answer.status_code == 200 and len(answer.json()["scores"]) != len(payments):
                answer.failure("not as many scores as payments")


def payment() -> dict[str, object]:
    """What the model wants to know about a card payment."""
    return {
        "amount": round(random.lognormvariate(3.4, 1.1), 2) + 0.01,
        "channel": random.choice(["web", "app", "store", "line"]),
        "age": random.randint(18, 90),
    }
