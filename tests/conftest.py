from __future__ import annotations

import os
import signal

from hypothesis import HealthCheck, settings

# A job in the background may have been started with interrupts ignored, which its children would inherit; the tests of
# Ctrl-C need them.
signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("WANDB_MODE", "disabled")

# A shared machine may be slow for a moment: how long an example takes is not what these tests are about.
settings.register_profile("project", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("project")
