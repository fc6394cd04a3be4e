"""Templates are checked and made ready once, and render safely for every recipient."""

from __future__ import annotations

import html
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carillon.content.syntax import check_subject
from carillon.content.templates import Prepared, Renderer, TemplateError, environment, lacks, ses_data
from carillon.content.typesetting import check_footing, check_placeholders, for_ses, missing_footing, prepare
from carillon.errors import TemplateRejected
from carillon.shapes import Step
from local.ses import rendering


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


def test_a_condition_may_ask_for_an_empty_cell() -> None:
    """``if`` asks whether something is there; comparing nothing with something is a mistake all the same."""
    renderer = Renderer(prepare(step(), "<p>{% if gift %}{{ gift }}{% else %}none{% endif %} {{ gift or 'no' }}</p>"))
    assert renderer.render({"gift": ""}).text == "none no"
    renderer = Renderer(prepare(step(), "<p>{% if gift == 'x' %}y{% endif %}</p>"))
    with pytest.raises(TemplateError, match="without default is missing"):
        renderer.render({"gift": ""})


def test_no_filter_makes_nothing_of_a_missing_value() -> None:
    """Else a link would lead nowhere, and nobody would know."""
    for expression in ("upper", "urlencode", "replace('a', 'b')", "join", "split(',') | first", "number", "title"):
        prepared = prepare(step(), f"<p>{{{{ v | {expression} }}}}</p>")
        with pytest.raises(TemplateError, match="without default is missing"):
            Renderer(prepared).render({"v": ""})


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
        "template 'news.html', or its subject or preheader, uses {{ fist_name }}, which no column of the list fills. "
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


# What Carillon gives itself

FOOTING = '<p>{{ postal_address }} <a href="{{ unsubscribe_url }}">Unsubscribe</a></p>'
GIVEN = {"unsubscribe_url": "https://api.example.com/u/t0k.en", "postal_address": "Bell & Co, Ulm"}


def test_what_carillon_fills_is_no_column_and_goes_first() -> None:
    """Batches carry no unsubscribe link, and no cell of the list can stand in its place."""
    prepared = prepare(step(), f"<p>{{{{ name }}}}</p>{FOOTING}")
    assert prepared.placeholders == ("name",)
    assert prepared.given == ("postal_address", "unsubscribe_url")
    assert prepared.required == ("name",)
    mail = Renderer(prepared).render({"name": "Eva", "unsubscribe_url": "https://evil.example"}, GIVEN)
    assert 'href="https://api.example.com/u/t0k.en"' in mail.html.replace("&#x2f;", "/")
    assert "Bell &amp; Co" in mail.html
    assert "Bell & Co, Ulm Unsubscribe (https://api.example.com/u/t0k.en)" in mail.text
    assert "evil" not in mail.html + mail.text


def test_what_an_enrichment_provides_is_given_too() -> None:
    """Its names are used as if they were columns, and are asked for later."""
    prepared = prepare(step(), "<p>{{ name }} {{ points }}</p>", provided=("points", "unused"))
    assert (prepared.placeholders, prepared.given) == (("name",), ("points",))
    assert "Eva 7" in Renderer(prepared).render({"name": "Eva"}, {"points": "7"}).text
    with pytest.raises(TemplateError, match=r"without default is missing .*: points"):
        Renderer(prepared).render({"name": "Eva"})


def test_a_column_that_carillon_hides_is_warned_of() -> None:
    """Whoever has a column of that name must know that it is not shown."""
    prepared = prepare(step(), f"<p>{{{{ when | date }}}}</p>{FOOTING}")
    known = ["when", "postal_address", "recipient_locale", "recipient_timezone", "name"]
    warnings = check_placeholders(step(), prepared, known)
    assert [warning.split("{{ ")[1].split(" }}")[0] for warning in warnings] == [
        "postal_address",
        "recipient_locale",
        "recipient_timezone",
    ]


@pytest.mark.parametrize(
    ("html", "missing"),
    [
        (FOOTING, ()),
        ("<p>x</p>", ("unsubscribe_url", "postal_address")),
        (f"{{% if vip %}}{FOOTING}{{% endif %}}", ("unsubscribe_url", "postal_address")),
        (f"{{% if vip %}}{FOOTING}{{% elif x %}}{FOOTING}{{% endif %}}", ("unsubscribe_url", "postal_address")),
        (f"{{% if de %}}{FOOTING}{{% elif fr %}}{FOOTING}{{% else %}}{FOOTING}{{% endif %}}", ()),
        (f"{{% for x in y %}}{FOOTING}{{% endfor %}}", ("unsubscribe_url", "postal_address")),
        (f"{{% if a %}}{{% if b %}}x{{% endif %}}{FOOTING}{{% else %}}{FOOTING}{{% endif %}}", ()),
        (f"<!-- {FOOTING} -->", ("unsubscribe_url", "postal_address")),
        (f"{{# {FOOTING} #}}<p>x</p>", ("unsubscribe_url", "postal_address")),
        ('<p><img src="https://example.com/{{ postal_address }}">{{ unsubscribe_url }}</p>', ("postal_address",)),
    ],
)
def test_everybody_must_see_the_way_out_and_the_address(html: str, missing: tuple[str, ...]) -> None:
    """In HTML and in text, whatever the data: in no condition that somebody does not meet, and in no comment."""
    prepared = prepare(step(), html)
    assert missing_footing(prepared) == missing
    if not missing:
        check_footing(step(), prepared)
        return
    with pytest.raises(TemplateRejected) as caught:
        check_footing(step(), prepared)
    pasted = str(caught.value).partition("outside conditions: ")[2]
    assert missing_footing(prepare(step(), html + pasted)) == ()


# Links


def refused(html: str, **options: str) -> str:
    with pytest.raises(TemplateRejected, match=r"'news\.html'") as caught:
        prepare(step(), html, **options)  # type: ignore[arg-type]
    return str(caught.value)


@pytest.mark.parametrize(
    ("href", "cause"),
    [
        ("", "leads nowhere"),
        ("javascript:alert(1)", "is of the kind javascript:"),
        (" JaVaScRiPt:alert(1)", "is of the kind javascript:"),
        ("data:text/html,x", "is of the kind data:"),
        ("/shop", "is relative"),
        ("shop.html", "has no scheme: write https:// before it"),
        ("www.example.com/x", "has no scheme: write https:// before it"),
        ("//example.com/x", "has no scheme: write https:// before it"),
        ("example.com:8080/x", "has no scheme"),
        ("?a=1", "is relative"),
        ("https:///x", "is no valid address"),
        ("https:example.com", "is no valid address"),
        ("https://exa mple.com/x", "is no valid address"),
        ("https://[::1/x", "is no valid address"),
        ("https://example.com:99999/", "is no valid address"),
    ],
)
def test_a_link_that_cannot_work_is_refused_with_its_line(href: str, cause: str) -> None:
    """A dead link in a million mails cannot be mended."""
    message = refused(f"<p>x</p>\n\n<p><a href='{href}'>go</a></p>")
    assert cause in message
    assert "(line 3)" in message


@pytest.mark.parametrize(
    ("href", "cause"),
    [
        ("#", "leads nowhere"),
        ("https://example.com/a b", "must be encoded"),
        ("http://localhost:3000/", "cannot reach"),
        ("http://192.168.1.4/", "cannot reach"),
        ("https://example.com/?q={{ q }}", "add | urlencode"),
    ],
)
def test_a_doubtful_link_is_a_warning_with_its_line(href: str, cause: str) -> None:
    """What may be meant is shown in the plan."""
    (warning,) = prepare(step(), f"<p>x</p>\n<p><a href='{href}'>go</a></p>").warnings
    assert cause in warning
    assert "(line 2)" in warning


@pytest.mark.parametrize(
    "href",
    [
        "https://example.com/?q={{ q | urlencode }}#x", "mailto:a@example.com?subject=x", "tel:0301234", "#top",
        "{{ link }}", "https://{{ host }}/x", "HTTP://EXAMPLE.COM", "https://bücher.example/", "sms:+49301234",
    ],
)  # fmt: skip
def test_other_links_are_fine(href: str) -> None:
    """Also those that only the list knows."""
    assert prepare(step(), f"<p><a href='{href}'>go</a><a name='top'>here</a></p>").warnings == ()


UTM = "utm_source=news&utm_medium=email"


@pytest.mark.parametrize(
    ("href", "data", "expected"),
    [
        ("https://example.com", {}, f"https://example.com?{UTM}"),
        ("https://example.com/a?b=1#c", {}, f"https://example.com/a?b=1&{UTM}#c"),
        ("https://example.com/?utm_source=own", {}, "https://example.com/?utm_source=own&utm_medium=email"),
        ("https://example.com/?a={{ x | urlencode }}", {"x": "b&c"}, f"https://example.com/?a=b%26c&{UTM}"),
        ("https://example.com/{{ x }}", {"x": "a"}, f"https://example.com/a?{UTM}"),
        ("https://example.com/{{ x }}", {"x": "a?b=1"}, f"https://example.com/a?b=1&{UTM}"),
        ("{{ x }}", {"x": "https://example.com/?a=1&b=2#c"}, f"https://example.com/?a=1&b=2&{UTM}#c"),
        ("{{ x }}", {"x": "https://example.com/?utm_medium=own"}, "https://example.com/?utm_medium=own&utm_source=news"),
        ("{{ x }}", {"x": "mailto:a@example.com"}, "mailto:a@example.com"),
        ("{% if x == 'a' %}https://a.example{% else %}https://b.example/?{% endif %}", {"x": "b"}, f"https://b.example/?{UTM}"),
        ("mailto:a@example.com", {}, "mailto:a@example.com"),
        ("#top", {}, "#top"),
    ],
)  # fmt: skip
def test_web_links_get_the_parameters_that_they_lack(href: str, data: dict[str, str], expected: str) -> None:
    """In HTML and text alike, before the fragment, and where a placeholder decides, when it is known."""
    mail = Renderer(prepare(step(), f'<p><a href="{href}">go</a></p>', parameters=UTM)).render(data)
    found = re.search(r'href="([^"]*)"', mail.html)
    assert found is not None
    assert html.unescape(found[1]) == expected
    if not expected.startswith(("#", "mailto:")):
        assert f"go ({expected})" in mail.text


def test_the_way_out_is_neither_tracked_nor_given_parameters() -> None:
    """SES would lead it over a page of its own, which one-click unsubscription must not go through."""
    prepared = prepare(step(), f"<p><a href='https://example.com'>go</a></p>{FOOTING}", parameters=UTM)
    assert '<a href="{{ unsubscribe_url }}" ses:no-track="">' in prepared.html
    assert prepared.html.count("ses:tags=") == 1


def test_each_tracked_link_says_which_it_is() -> None:
    """Reports count by the link of the template, not by addresses that differ from recipient to recipient."""
    prepared = prepare(
        step(),
        "<p><a href='https://a.example'>a</a><a href='mailto:x@example.com'>m</a><a href='{{ x }}'>x</a>"
        "<a ses:tags='product:book;genre:sci-fi' href='https://b.example'>b</a>"
        "<a ses:tags='link:hero;' href='https://c.example'>c</a><a ses:no-track href='https://d.example'>d</a></p>",
    )
    assert re.findall(r'ses:tags="([^"]*)"', prepared.html) == [
        "link:1;", "link:2;", "product:book;genre:sci-fi;link:3;", "link:hero;"
    ]  # fmt: skip
    assert "must" not in "".join(prepared.warnings)


@pytest.mark.parametrize("tags", ["product", "a:b c", "größe:l", "a:{{ x }}", "a:b,c:d"])
def test_link_tags_that_ses_would_not_take_are_refused(tags: str) -> None:
    """Letters, digits, underscore and hyphen, in name:value; pairs (AWS: SES metrics FAQ)."""
    assert "ses:tags=" in refused(f"<p><a ses:tags='{tags}' href='https://a.example'>a</a></p>")


def test_more_links_than_ses_counts_are_a_warning() -> None:
    """The reports would lack the rest."""
    (warning,) = prepare(step(), "<p>" + "<a href='https://a.example'>a</a>" * 251 + "</p>").warnings
    assert "has 251 links" in warning


def test_html_that_gmail_hides_is_a_warning() -> None:
    """With the end of the mail the unsubscribe link is hidden too."""
    assert prepare(step(), "<p>" + "x" * 90_000 + "</p>").warnings == ()
    (warning,) = prepare(step(), "<p>" + "x" * 110_000 + "</p>").warnings
    assert "Gmail hides what is after 102 KB" in warning


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<a href='https://example.com/'>example.com</a>", "example.com"),
        ("<a href='https://example.com/'>https://example.com/</a>", "https://example.com/"),
        ("<a href='https://example.com/'><img alt='Shop' src='https://e.example/i.png'></a>", "Shop (https://example.com/)"),
        ("<a href='https://example.com/'><img src='https://e.example/i.png'></a>", "https://example.com/"),
        ("<a href='mailto:a@example.com?subject=x'>Write us</a>", "Write us (a@example.com)"),
        ("<a href='mailto:a@example.com'>a@example.com</a>", "a@example.com"),
        ("<a href='#top'>Top</a>", "Top"),
        ("<a href='https://example.com/?a=1&amp;b=2'>Tom &amp; <b>Co</b></a>", "Tom & Co (https://example.com/?a=1&b=2)"),
        ("<a href='https://example.com/'>{{ a }}</a>", "A (https://example.com/)"),
    ],
)  # fmt: skip
def test_the_text_part_reads_like_a_letter(html: str, text: str) -> None:
    """Where a link leads stands behind its words, once."""
    assert rendered(f"<p>{html}</p>", a="A")[2].strip() == text


# Bounds


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("{% macro m() %}x{% endmacro %}", "{% macro %} is not supported"),
        ("{% set a %}x{% endset %}", "{% set %} without a value"),
        ("{% set a = b ~ b %}{{ a }}", "{% set %} cannot put values together"),
        ("{% set a = [b, b] %}{{ a }}", "{% set %} cannot put values together"),
        ("{% set a = (b, b) %}{{ a }}", "{% set %} cannot put values together"),
        ("{% set a = b | default([b, b]) %}{{ a }}", "{% set %} cannot put values together"),
        ("{% for a in [b ~ b] %}{{ a }}{% endfor %}", "{% for %} cannot put values together"),
        ("{% for a in b recursive %}{{ loop(a) }}{% endfor %}", "recursive"),
        ("{{ 'x' * 1000000000 }}", "only numbers can be multiplied"),
        ("{{ b * 2 }}", "only numbers can be multiplied"),
        ("{{ b | float * 2 ** 9 }}", "only numbers can be multiplied"),
        ("{{ b | indent(1000000000) }}", "filter indent is unknown"),
        ("{{ b | tojson }}", "filter tojson is unknown"),
        ("{{ b | uper }}", "did you mean upper?"),
        ("{{ b.replace('', b) }}", "has no method named replace"),
        ("{% autoescape false %}{{ b }}{% endautoescape %}", "{% autoescape %} is not supported"),
        ("{% filter upper %}{{ b }}{% endfilter %}", "{% filter %} is not supported"),
        ("{% import 'x' as y %}", "{% import %} is not supported"),
    ],
)
def test_what_could_grow_without_bound_is_no_part_of_the_language(source: str, cause: str) -> None:
    """A few lines must not be able to ask for gigabytes."""
    assert cause in refused(f"<p>{source}</p>")


@pytest.mark.parametrize(
    "source",
    [
        "{% set greeting = name | default('you') | upper %}{{ greeting ~ '!' }}",
        "{{ price | float * 1.19 }}{{ 2 * price | float }}",
        "{% for part in words | split(',') %}{{ loop.index }}{{ part }}{% endfor %}",
        "{% for n in [1, 2, 'x'] %}{{ n }}{% if not loop.last %}, {% endif %}{% endfor %}",
        "{{ name[:1] | upper }}{{ '~*+' }}{{ (price | float + 1) | round(2) }}",
        "{% raw %}{{ x * 9 }}{% endraw %}{# {% macro %} #}",
    ],
)
def test_what_people_write_is_part_of_the_language(source: str) -> None:
    """Conditions, loops, lists of literals, sums and joined texts."""
    renderer = Renderer(prepare(step(), f"<p>{source}</p>"))
    assert renderer.render({"name": "Eva", "price": "2", "words": "a,b"}).html


@pytest.mark.parametrize(
    "source",
    [
        "{% for c in v %}{{ v }}{% endfor %}",
        "{% for c in v %}{% for d in v %}{{ c }}" + "text " * 1000 + "{% endfor %}{% endfor %}",
        "{{ v }}" * 1000,
        "{{ v | replace('x', v) }}",
        "{{ v | split('x') | join(v) }}",
        "{% for a in v | split('x') %}{{ v ~ v ~ v }}{% endfor %}",
        "{{ " + " ~ ".join(["v"] * 500) + " }}",
    ],
)
def test_a_large_value_fails_its_task_and_not_the_sender(source: str) -> None:
    """200 KB shown again and again: refused before it takes the memory or the time of the others."""
    renderer = Renderer(prepare(step(), f"<p>{source}</p>"))
    assert renderer.render({"v": "xy"}).html
    began = time.monotonic()
    with pytest.raises(TemplateError):
        renderer.render({"v": "x" * 200_000})
    assert time.monotonic() - began < 5
    assert renderer.render({"v": "xy"}).html, "and the next is sent"


def test_an_email_of_seven_megabytes_is_refused() -> None:
    """SES slows a sender down from 10 MB on, and base64 makes 4 of 3."""
    renderer = Renderer(prepare(step(), "<p>" + "{{ v }}" * 20 + "</p>"))
    assert len(renderer.render({"v": "x" * 150_000}).html) > 3_000_000
    with pytest.raises(TemplateError, match="over 7,000,000 bytes"):
        renderer.render({"v": "x" * 180_000})


def test_a_subject_is_checked_before_there_is_a_template() -> None:
    """The API refuses a typo when the campaign is created."""
    check_subject(step("Hello {{ name | default('you') }}"))
    for subject in ("Hello {{ name }", "{% if a %}x", "{{ a | shout }}", "{{ 'x' * 9 }}"):
        with pytest.raises(TemplateRejected, match="subject"):
            check_subject(step(subject))
    with pytest.raises(TemplateRejected, match="preheader"):
        check_subject(step(preheader="{{"))


# Pieces

_TEXT = st.text(alphabet="ab %<&\n\x1f{}", max_size=6).filter(lambda t: not re.search(r"[{}][{%#}]|\{$|^[}%]", t))
_EXPRESSIONS = st.sampled_from(
    [
        "{{ a }}",
        "{{ b }}",
        "{{ a | upper }}",
        "{{ c | default('-') }}",
        "{# note #}",
        "{{- a -}}",
        "{{ a ~ b }}",
        "{% raw %}{{ x }}{% endraw %}",
        "{% set a = b %}",
        "{{ '\x1f' }}",
        "{% filter upper %}{{ a }}{% endfilter %}",
    ]
)
_SOURCES = st.recursive(
    st.lists(st.one_of(_TEXT, _EXPRESSIONS), max_size=8).map("".join),
    lambda inner: st.lists(
        st.one_of(
            inner,
            inner.map(lambda body: f"{{% if a == 'x' %}}{body}{{% else %}}no{{% endif %}}"),
            inner.map(lambda body: f"{{% for c in a %}}{body}{{% endfor %}}"),
        ),
        max_size=3,
    ).map("".join),
    max_leaves=6,
)


@settings(deadline=None)
@given(_SOURCES, st.sampled_from(["x", "<\x1f>", "%s", "é"]), st.sampled_from(["y", "&"]))
def test_pieces_put_together_are_the_whole(source: str, a: str, b: str) -> None:
    """Rendering each different piece once changes nothing but the time."""
    source *= 3  # so that there is something to render once
    prepared = Prepared(subject="x", html=source, text=source, placeholders=("a", "b", "c"), required=None)
    whole = environment(prepared)
    mail = Renderer(prepared).render({"a": a, "b": b})
    assert mail.html == whole.render_template("html", a=a, b=b)
    assert mail.text == whole.render_template("text", a=a, b=b)


# The direct route


def test_ses_fills_what_is_plain_with_values_escaped_where_there_is_markup() -> None:
    """SES escapes nothing by itself, so HTML has names of its own (AWS: advanced email personalization)."""
    made = for_ses(prepare(step("Hi {{ name }}"), f"<p>{{{{ name }}}}</p>{{# note #}}{FOOTING}"))
    assert made.subject == "Hi {{text_name}}"
    assert "<p>{{html_name}}</p>" in made.html
    assert 'href="{{html_unsubscribe_url}}"' in made.html
    assert "{{text_name}}" in made.text
    assert "note" not in made.html
    data = ses_data({"name": "<b>Tom\r\nBcc: x</b>", "city": " ", **GIVEN})
    assert data["html_name"] == "&lt;b&gt;Tom\r\nBcc: x&lt;/b&gt;"
    assert data["text_name"] == "<b>Tom Bcc: x</b>", "a subject is one line"
    assert "html_city" not in data
    filled = rendering.render(made.html, data)
    assert "&lt;b&gt;Tom" in filled
    assert "Bell &amp; Co" in filled


@pytest.mark.parametrize(
    ("html", "parameters"),
    [
        ("<p>{{ name | upper }}</p>", ""),
        ("<p>{% if name %}x{% endif %}</p>", ""),
        ("<p>{{ größe }}</p>", ""),
        ("<p>\\{{ name }}</p>", ""),
        ("<p>{ {{ name }}}</p>", ""),
        ("<p>{% raw %}{{ x }}{% endraw %}</p>", ""),
        ("<p><a href='{{ link }}'>x</a></p>", UTM),
    ],
)
def test_what_ses_would_read_otherwise_is_refused_on_the_direct_route(html: str, parameters: str) -> None:
    """The place and the way out are named."""
    with pytest.raises(TemplateRejected, match=r"the html has .*\(line 1\): on the direct route"):
        for_ses(prepare(step(), html, parameters=parameters))
