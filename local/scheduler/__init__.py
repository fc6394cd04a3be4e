"""EventBridge Scheduler of the local cloud: everything a one-time schedule goes through."""

from local.scheduler.service import Scheduler

__all__ = ["Scheduler"]
