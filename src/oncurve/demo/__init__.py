"""`oncurve demo`: GRPO teaches the shipped tiny model to reason, in minutes, and shows how."""

from oncurve.demo.show import run_demo
