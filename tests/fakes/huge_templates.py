"""Chat templates that make something huge; the program fails with those that a limit of 32 MiB does not refuse."""

from __future__ import annotations

import resource
import sys

from transformers import AutoTokenizer

from fakes.tables import table
from oncurve.base.errors import ModelError
from oncurve.models import tiny
from oncurve.models.loading import chat_templates as chat

DOUBLED = "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(24) %}{% set ns.x = DOUBLE %}{% endfor %}{{ ns.x }}"
LONG = "{% set a %}{% for i in range(99999) %}aaaaaaaa{% endfor %}{% endset %}"
HUGE = [
    *table("huge_templates", "huge"),
    LONG + "{{ a.replace('a', a[:99]) }}",
    LONG + "{{ range(99)|join(a) }}",
    LONG + "{% for i in range(99) %}{{ a }}{% endfor %}",
    *(DOUBLED.replace("DOUBLE", made) for made in ("ns.x + ns.x", "ns.x ~ ns.x", "[ns.x, ns.x]|join", "ns.x * 2")),
]
"""Templates that take 60 to 400 MB where nothing refuses them."""


def main() -> str:
    """Return a line for each template that is not refused, or that leaves another limit than there was."""
    wrong = list[str]()
    tokenizer = AutoTokenizer.from_pretrained(tiny.path())
    chat.TEMPLATE_BYTES, chat.TEMPLATE_CHARACTERS = 32 << 20, 1 << 40
    limit = resource.getrlimit(resource.RLIMIT_DATA)
    messages = [{"role": "user", "content": "2+2="}]
    for template in HUGE:
        tokenizer.chat_template = template.replace("N", "60000000").replace("M", "20000000")
        try:
            made = len(chat.apply_template(tokenizer, messages, "the model's"))
        except ModelError as error:
            if not str(error).startswith("the model's chat template made more of one prompt than 32 MiB"):
                wrong.append(f"{template}: {error}")
        else:
            wrong.append(f"{template}: {made}")
        if resource.getrlimit(resource.RLIMIT_DATA) != limit:
            wrong.append(f"{template} changed the limit")
    tokenizer.chat_template = "{{ 'ab' * 10000 }}"
    if chat.apply_template(tokenizer, messages, "the model's") != "ab" * 10000:
        wrong.append("an ordinary template is refused")
    return "\n".join(wrong)


if __name__ == "__main__":
    sys.exit(main() or 0)
