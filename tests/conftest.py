"""Before anything else: our own processes never run monkey-patched, so the tests do not either."""

import os

os.environ["LOCUST_SKIP_MONKEY_PATCH"] = "1"

import locust  # noqa: F401  (before aiohttp: see CONTRIBUTING)
