"""Templates are checked and made ready once, and render safely for every recipient."""

from __future__ import annotations

import pytest

from carillon.errors import TemplateRejected
from carillon.shapes import Step
from carillon.templates import Prepared, Renderer, TemplateError, lacks
from carillon.typesetting import check_placeholders, prepare


def step(subject: str = "Hello", preheader: str | None = None) -> Step:
    return Step.model_validate(
        {"template": "news.html", "subject": subject, "preheader": preheader, "rule": {"kind": "asap"}}
    )


def rendered(html: str, subject: str = "Hello", **data: str) -> tuple[str, str, str]:
    mail = Renderer(prepare(step(subject), html)).render(data)
    return mail.subject, mail.html, mail.text


def test_values_are_escaped_in_html_and_left_alone_in_subject_and_text() -> None:
    """A value is data: markup in it is shown, not obeyed, and is not mangled where there is no markup."""
    subject, html, text = rendered("<p>Hi {{ name }}</p>", "For {{ name }}", name="<b>Tom & Co</b>")
    assert "&lt;b&gt;Tom &amp; Co" in html
    assert "<b>" not in html
    assert subject == "For <b>Tom & Co</b>"
    assert text == "Hi <b>Tom & Co</b>"


def test_template_syntax_in_a_value_is_data() -> None:
    """A cell that holds ``{{ 7*7 }}`` arrives as those characters."""
    _, html, text = rendered("<p>{{ name }}</p>", name="{{ 7*7 }}{% for %}")
    assert "{{ 7*7 }}{% for %}" in html
    assert "49" not in html + text


@pytest.mark.parametrize("break_", ["\n", "\r\n", "\r", "\u2028", "\x00"])
def test_a_line_break_in_the_subject_is_refused(break_: str) -> None:
    """A value can never become a header of its own."""
    renderer = Renderer(prepare(step("Hi {{ name }}"), "<p>x</p>"))
    with pytest.raises(TemplateError, match="line break"):
        renderer.render({"name": f"Finn{break_}Bcc: all@example.net"})
    with pytest.raises(TemplateError, match="line break"):
        renderer.render({"name": f"Finn{break_}"})


def test_an_empty_cell_takes_the_default_and_without_one_is_an_error() -> None:
    """Blank cells count as missing, so a default stands in, and nobody is greeted with nothing."""
    prepared = prepare(step(), "<p>{{ first | default('there') }} {{ city }}</p>")
    renderer = Renderer(prepared)
    assert "there Ulm" in renderer.render({"first": "  ", "city": "Ulm"}).text
    with pytest.raises(TemplateError, match=r"without default is missing .*: city"):
        renderer.render({"first": "Eva", "city": ""})


def test_an_error_never_repeats_the_data() -> None:
    """Messages end up in logs and rows: they name the place and not the person."""
    renderer = Renderer(prepare(step(), "<p>{{ age | int }}</p>"))
    with pytest.raises(TemplateError) as caught:
        renderer.render({"age": "eva@example.com"})
    assert "eva" not in str(caught.value)


def test_what_every_recipient_needs_is_known_before_rendering() -> None:
    """Plain placeholders without default are required; with a default they are not."""
    prepared = prepare(
        step("{{ a }}", "{{ b }}"), "<p>{{ c | upper }}{{ d | default('x') }}{{ e | d('y') | upper }}</p>"
    )
    assert prepared.placeholders == ("a", "b", "c", "d", "e")
    assert prepared.required == ("a", "b", "c")


def test_with_conditions_the_data_decide_what_is_missing() -> None:
    """Only rendering can tell whether a branch needs a value, so that is what is asked."""
    prepared = prepare(step(), "<p>{% if tier == 'gold' %}{{ gift }}{% endif %}</p>")
    assert prepared.required is None
    renderer = Renderer(prepared)
    assert not lacks(renderer, {"tier": "iron", "gift": ""})
    assert lacks(renderer, {"tier": "gold", "gift": ""})


def test_a_placeholder_that_no_column_fills_is_refused_by_name() -> None:
    """The message names template, placeholder and columns, and guesses what was meant."""
    prepared = prepare(step(), "<p>{{ fist_name }}</p>")
    with pytest.raises(TemplateRejected) as caught:
        check_placeholders(step(), prepared, ["email", "first_name"])
    assert str(caught.value) == (
        "template 'news.html' uses {{ fist_name }}, which no column of the list fills. "
        "Did you mean {{ first_name }}? Columns: email, first_name"
    )


@pytest.mark.parametrize(
    ("html", "cause"),
    [
        ("<p>{{ a }</p>", "cannot be parsed, line 1"),
        ("<p>{% if a %}</p>", "cannot be parsed"),
        ("<p>{{ a | shout }}</p>", "filter shout is unknown"),
        ("<p>{% include 'other' %}</p>", "{% include %} is not supported"),
        ("<p>{{ a.b }}</p>", "`a.b` is undefined"),
        ("<p {% if a %}id=x{% endif %}>t</p>", "between attributes"),
        ("<style>{% if a %}p{color:red}{% endif %}</style><p>t</p>", "inside <style>"),
        ("<p>" + "x" * 500_001, "500,000 bytes"),
    ],
)
def test_a_template_that_nobody_could_be_sent_is_refused(html: str, cause: str) -> None:
    """Parsing, filters, includes and places that inlining cannot keep are found before anything is enrolled."""
    with pytest.raises(TemplateRejected, match=r"'news\.html'") as caught:
        prepare(step(), html)
    assert cause in str(caught.value)


def test_functions_and_endless_loops_are_out_of_reach() -> None:
    """No global function is callable (``debug`` would show the data), and fuel ends what goes on for ever."""
    assert "debug" in prepare(step(), "<p>{% if debug %}x{% endif %}</p>").placeholders
    loop = "{% for a in x %}{% for b in x %}{% for c in x %}.{% endfor %}{% endfor %}{% endfor %}"
    renderer = Renderer(prepare(step(), f"<p>{loop}</p>"))
    with pytest.raises(TemplateError, match="too many steps"):
        renderer.render({"x": "y" * 1000})


def test_css_is_inlined_and_braces_survive_everywhere() -> None:
    """Placeholders in styles, attributes, titles, comments and tables come through the HTML parsers as written."""
    source = """<!doctype html><html><head><title>{{ t }}</title><style>
      p { color: {{ colour }} } td { padding: {{ n }}px } @media (max-width:600px) { p { color: red } }
      </style></head><body class="{{ c }}"><p>{{ "}}" }} 5 &lt; {{ a | default("<x>") }}</p>
      <table>{% for row in r %}<tr><td><a href='{{ link }}?a=1&b={{ a }}'>go</a></td></tr>{% endfor %}
      <tr><td>last</td></tr></table><!--[if mso]>{{ m }}<![endif]--></body></html>"""
    html = prepare(step(), source).html
    for kept in (
        "<title>{{ t }}</title>",
        "color: {{ colour }};",
        "padding: {{ n }}px;",
        'class="{{ c }}"',
        '{{ "}}" }} 5 &lt; {{ a | default("<x>") }}',
        'href="{{ link }}?a=1&amp;b={{ a }}"',
        "@media (max-width:600px)",
        "<!--[if mso]>{{ m }}<![endif]-->",
    ):
        assert kept in html
    assert html.index("{% for row in r %}") < html.index("go</a>") < html.index("{% endfor %}") < html.index("last")


def test_the_text_part_follows_conditions_in_tables() -> None:
    """A row that only some are shown in HTML is shown to the same people in text."""
    source = "<table>{% if vip == 'y' %}<tr><td>secret</td><td>2</td></tr>{% endif %}<tr><td>all</td></tr></table>"
    assert "secret" in rendered(source, vip="y")[2]
    ordinary = rendered(source, vip="n")[2]
    assert "secret" not in ordinary
    assert "all" in ordinary


def test_the_text_part_shows_where_links_lead() -> None:
    """Text readers can follow a link, placeholders in it included."""
    assert "Shop (https://example.com/?u=7)" in rendered('<a href="https://example.com/?u={{ u }}">Shop</a>', u="7")[2]


def test_the_text_part_is_not_indented_by_the_layout() -> None:
    """Every newsletter is a stack of <div>s, which are no quotations."""
    text = rendered("<body><div><div><h1>Hi</h1>\n<p>One</p>\n<p>Two</p></div></div></body>")[2]
    assert text == "Hi\n\nOne\n\nTwo"


def test_a_template_that_never_ends_is_refused_in_words() -> None:
    """What uses up the fuel for stand-in values would for everybody."""
    loops = "".join(f'{{% for c{n} in "{"x" * 50}" %}}' for n in range(4)) + "x" + "{% endfor %}" * 4
    with pytest.raises(TemplateRejected, match="takes too many steps"):
        prepare(step(), f"<p>{loops}</p>")


def test_the_preheader_is_hidden_in_html_and_absent_from_text() -> None:
    """Inboxes preview it; readers do not see it twice."""
    prepared = prepare(step(preheader="Only today, {{ name }}"), "<p>Body</p>")
    mail = Renderer(prepared).render({"name": "Eva"})
    assert mail.html.index("display:none") < mail.html.index("Only today, Eva") < mail.html.index("Body")
    assert "Only today" not in mail.text


def test_a_bare_fragment_becomes_a_document() -> None:
    """A template that starts with a placeholder keeps it inside the body."""
    html = prepare(step(), "{{ greeting }} <b>x</b>").html
    assert html.index("<body>") < html.index("{{ greeting }}")


def test_nothing_is_fetched_while_inlining() -> None:
    """A stylesheet link is left unread: preparation reaches nothing outside."""
    html = prepare(
        step(), '<html><head><link rel="stylesheet" href="http://127.0.0.1:9/x.css"></head><body>x</body></html>'
    )
    assert "x" in html.html


def test_prepared_templates_travel_as_json() -> None:
    """What PrepareList writes is what the sender reads."""
    prepared = prepare(step("{{ ä }}"), "<p>{{ ä }}</p>")
    assert Prepared.model_validate_json(prepared.model_dump_json()) == prepared
