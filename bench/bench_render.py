"""Rendering beside Jinja2: the same newsletter, the same rows, both engines warm, in one run.

A compiled MiniJinja template is what the sender keeps for each step; Jinja2 gets the same: one environment, compiled
once, autoescape in HTML and strict undefined. Both render subject, HTML and text.

    python bench/bench_render.py [e-mails]     (default 3000; the goal is at least 5 times Jinja2's rate)
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "functions"))

import jinja2

from carillon.content.templates import Prepared, Renderer
from carillon.content.typesetting import prepare
from carillon.shapes import Step

GOAL = 5.0
ROUNDS = 5

_HEAD = "<html><head><style>p { margin: 0 0 16px; font: 16px/24px Arial } a { color: #06c }</style></head><body>"
_PARAGRAPHS = "\n".join(
    f"<p>Dear {{{{ first_name }}}} {{{{ last_name }}}}, item {n} of your order {{{{ order }}}} is on its way to "
    f'{{{{ city }}}}. <a href="https://example.com/{n}?order={{{{ order | urlencode }}}}">Follow it</a></p>'
    for n in range(25)
)
_BLOCKS = """{% if tier == 'gold' %}<p>{{ first_name | upper }}, {{ points }} points are yours.</p>
{% elif city %}<p>Visit us in {{ city | title }}.</p>{% else %}<p>Visit us.</p>{% endif %}
<ul>{% for word in words | split(',') %}<li>{{ loop.index }}. {{ word }}</li>{% endfor %}</ul>
{% if points %}<p>{{ points }} of {{ first_name | default("your") }}'s points expire.</p>{% endif %}"""
TEMPLATES = {
    "a letter: placeholders alone": f"{_HEAD}<h1>{{{{ title }}}}</h1>{_PARAGRAPHS}</body></html>",
    "a newsletter: two conditions and a loop as well": f"{_HEAD}<h1>{{{{ title }}}}</h1>{_PARAGRAPHS}{_BLOCKS}</body>",
    "logic: ten times two conditions and a loop": f"{_HEAD}<h1>{{{{ title }}}}</h1>"
    + "".join(_BLOCKS.replace("points", f"points{n}") for n in range(10))
    + "</body></html>",
}


def _row(n: int) -> dict[str, str]:
    return {
        "title": "Spring & Easter",
        "first_name": f"Anna-{n}",
        "last_name": "O'Neil",
        "order": f"A/{n:06d}",
        "city": "Sankt Pölten",
        "tier": ("gold", "iron")[n % 2],
        "words": "eggs,<nests>,bells,lambs,tulips",
        "points": str(n),
        **{f"points{each}": str(each) for each in range(10)},
    }


class _Jinja2:
    def __init__(self, prepared: Prepared) -> None:
        def environment(*, escape: bool) -> jinja2.Environment:
            made = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=escape)  # noqa: S701  (text parts)
            made.filters["split"] = lambda value, between: str(value).split(between)
            return made

        bare = environment(escape=False)
        self._parts = (
            bare.from_string(prepared.subject),
            environment(escape=True).from_string(prepared.html),
            bare.from_string(prepared.text),
        )

    def render(self, data: dict[str, str]) -> tuple[str, ...]:
        return tuple(part.render(data) for part in self._parts)


def main() -> None:
    """Both engines in turns, best round of each."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 3000
    step = Step.model_validate(
        {"template": "t.html", "subject": "{{ first_name }}: {{ title }}", "rule": {"kind": "asap"}}
    )
    rows = [_row(n) for n in range(count)]
    for name, source in TEMPLATES.items():
        prepared = prepare(step, source)
        ours, theirs = Renderer(prepared), _Jinja2(prepared)
        assert len(ours.render(rows[0]).text) == len(theirs.render(rows[0])[2]), "both must render the same"
        best = {"ours": float("inf"), "theirs": float("inf")}
        for _ in range(ROUNDS):
            for engine, render in (("ours", ours.render), ("theirs", theirs.render)):
                began = time.process_time()
                for row in rows:
                    render(row)
                best[engine] = min(best[engine], time.process_time() - began)
        ratio = best["theirs"] / best["ours"]
        print(f"{name} ({len(prepared.html):,} bytes of HTML)")
        print(f"  MiniJinja  {best['ours'] / count * 1e6:8.1f} µs an e-mail   {count / best['ours']:10,.0f} a second")
        print(
            f"  Jinja2     {best['theirs'] / count * 1e6:8.1f} µs an e-mail   {count / best['theirs']:10,.0f} a second"
        )
        print(f"  {ratio:.1f} times Jinja2's rate; the goal is {GOAL:.0f}")


if __name__ == "__main__":
    main()
