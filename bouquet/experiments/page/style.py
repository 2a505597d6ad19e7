"""How the page looks: one style sheet for light, dark, phone and paper, and one colour and shape per method.

Colours are told apart by people who see red and green alike, and have a contrast of 3 or more with the page. No reader
has to tell colours: lines also differ in their dashes, points in their shape.
"""

from __future__ import annotations

_LIGHT = ("#0a5ea8", "#b8480a", "#00745a", "#9b3a78", "#7d6200", "#4a4a52")
_DARK = ("#74b9ff", "#ff9f5f", "#4fd3a7", "#f096c8", "#e2c14e", "#c6c6cf")
DASHES = ("", "7 3", "2 3", "9 3 2 3", "5 2", "1 2")
COLOURS = len(_LIGHT)

_THEME = """
  --paper: {paper}; --ink: {ink}; --soft: {soft}; --line: {line}; --wash: {wash}; --alarm: {alarm};
  --alarm-wash: {alarm_wash}; {colours}
"""


def _theme(colours: tuple[str, ...], **values: str) -> str:
    named = " ".join(f"--c{place}: {colour};" for place, colour in enumerate(colours))
    return _THEME.format(colours=named, **values)


_ON_PAPER = _theme(
    _LIGHT,
    paper="#fdfdfb",
    ink="#1d1f23",
    soft="#585c64",
    line="#d9d9d4",
    wash="#f3f3ee",
    alarm="#a31515",
    alarm_wash="#fdeceb",
)
_AT_NIGHT = _theme(
    _DARK,
    paper="#16181c",
    ink="#e7e7e3",
    soft="#a5a9b1",
    line="#363a42",
    wash="#1f2228",
    alarm="#ff9b92",
    alarm_wash="#3a1c1b",
)

_RULES = """
* { box-sizing: border-box; }
html { color-scheme: light dark; -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 17px/1.6 Charter, "Bitstream Charter", "Sitka Text", Cambria, "Liberation Serif", serif; }
main, header, footer, nav { max-width: 66rem; margin: 0 auto; padding: 0 1.25rem; }
header { padding-top: 3rem; }
h1 { font-size: 2rem; line-height: 1.2; margin: 0 0 .75rem; font-weight: 600; text-wrap: balance; }
h2 { font-size: 1.3rem; line-height: 1.3; margin: 0 0 .5rem; font-weight: 600; }
section { padding-top: 2.75rem; }
p { max-width: 40rem; margin: .5rem 0 1rem; }
a { color: var(--c0); text-underline-offset: .15em; }
:focus-visible { outline: 3px solid var(--c0); outline-offset: 2px; border-radius: 2px; }
.skip { position: absolute; left: -99rem; }
.skip:focus { position: static; display: inline-block; padding: .5rem 1.25rem; }
.soft, figcaption, footer, .note { color: var(--soft); }
table, figure, nav, .key, summary, .tag, footer, svg text
  { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Liberation Sans", Arial, sans-serif; }
nav { margin-top: 1.25rem; font-size: .9rem; }
nav ul { list-style: none; display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; margin: 0; padding: .6rem 0;
  border-block: 1px solid var(--line); }
.leaky { border: 2px solid var(--alarm); background: var(--alarm-wash); padding: .75rem 1rem; margin: 1.5rem 0 0;
  border-radius: 4px; }
.leaky strong { color: var(--alarm); }
.leaky p, .caution p { margin: 0; max-width: 46rem; }
.caution { border-left: 4px solid var(--c4); padding: .25rem 1rem; margin: 1.5rem 0 0; }
.tag { color: var(--alarm); border: 1px solid var(--alarm); border-radius: 3px; font-size: .72rem; font-weight: 700;
  letter-spacing: .04em; padding: 0 .3em; white-space: nowrap; }
.scroll { overflow-x: auto; margin: 1rem 0; max-width: 100%; }
table { border-collapse: collapse; font-size: .875rem; line-height: 1.4; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); padding-bottom: .4rem; }
caption span { display: block; position: sticky; left: 0; width: min(40rem, 100vw - 2.5rem); }
th, td { padding: .35rem .9rem .35rem 0; text-align: right; vertical-align: baseline; white-space: nowrap; }
th:last-child, td:last-child { padding-right: .25rem; }
th { font-weight: 600; }
thead th { border-bottom: 1.5px solid var(--ink); border-top: 2px solid var(--ink); vertical-align: bottom;
  white-space: normal; min-width: 4.2rem; }
tbody tr:last-child > * { border-bottom: 2px solid var(--ink); }
tbody tr + tr.rule > * { border-top: 1px solid var(--line); }
.left { text-align: left; }
tbody th { text-align: left; font-weight: 400; }
td.wide { white-space: normal; min-width: 12rem; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(20rem, 100%), 1fr)); gap: 1.5rem 2rem;
  margin: 1rem 0; align-items: start; }
figure { margin: 0; max-width: 34rem; break-inside: avoid; display: grid; grid-row: span 3;
  grid-template-rows: subgrid; grid-template-columns: minmax(0, 1fr); row-gap: 0; }
figcaption { align-self: end; font-size: .875rem; line-height: 1.4; margin-bottom: .35rem; }
figcaption b { color: var(--ink); font-weight: 600; }
svg { display: block; width: 100%; height: auto; overflow: visible; }
svg text { font-size: 11px; fill: var(--soft); font-variant-numeric: tabular-nums; }
svg text.name { fill: var(--ink); font-size: 11.5px; paint-order: stroke; stroke: var(--paper); stroke-width: 4px; }
svg .axis { stroke: var(--soft); stroke-width: 1; }
svg .grid { stroke: var(--line); stroke-width: 1; }
.s { transition: opacity .12s; }
.s path.l { fill: none; stroke: currentColor; stroke-width: 2; stroke-linejoin: round; }
.s.many path.l { stroke-width: 1.25; opacity: .8; }
svg .axis, svg .grid { shape-rendering: crispEdges; }
.s .w { stroke: currentColor; stroke-width: 1.5; }
.s .p { fill: currentColor; stroke: var(--paper); stroke-width: 1; }
.s .best { fill: var(--paper); stroke: currentColor; stroke-width: 2; }
.key { list-style: none; display: flex; flex-wrap: wrap; gap: .3rem 1.4rem; margin: .75rem 0; padding: 0;
  font-size: .875rem; }
.key li { display: flex; align-items: center; gap: .5em; }
.key svg { width: 34px; height: 12px; flex: none; }
details { margin: .5rem 0 1rem; }
summary { cursor: pointer; font-size: .875rem; color: var(--soft); padding: .2rem 0; width: fit-content; }
.lists { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(17rem, 100%), 1fr)); gap: 1rem 2rem; }
.lists h3 { font-size: 1rem; margin: .5rem 0 .25rem; }
.lists ol { margin: 0; padding-left: 1.6rem; font-size: .95rem; }
footer { font-size: .82rem; padding-top: 3rem; padding-bottom: 3rem; }
code { overflow-wrap: anywhere; font: .85em/1.5 ui-monospace, Menlo, Consolas, "Liberation Mono", monospace; }
@media (max-width: 40rem) {
  body { font-size: 16px; }
  header { padding-top: 1.75rem; }
  h1 { font-size: 1.55rem; }
  svg text { font-size: 12.5px; }
  svg text.name { font-size: 13px; }
  tbody th { white-space: normal; min-width: 7rem; max-width: 9rem; }
  section { padding-top: 2.25rem; }
}
@media (prefers-reduced-motion: reduce) { .s { transition: none; } }
@media print {
  @page { margin: 18mm; }
  body { font-size: 10.5pt; }
  main, header, footer { max-width: none; padding-inline: 0; }
  nav, .skip, .hint { display: none; }
  section { padding-top: 1.5rem; }
  .scroll { overflow: visible; }
  table { font-size: 8pt; }
  th { white-space: normal; }
  th, td { padding-right: .55rem; }
  h2, figcaption, caption { break-after: avoid; }
  tr, figure, .lists > div { break-inside: avoid; }
}
"""


def style_sheet(methods: int) -> str:
    """The style sheet of a page with so many methods; who points at one in a key sees the others step back."""
    rules = [
        f":root {{{_ON_PAPER}}}",
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{{_AT_NIGHT}}} }}",
        _RULES,
    ]
    for place in range(methods):
        rules.append(f".s{place} {{ color: var(--c{place % COLOURS}); }}")
        rules.append(f".s{place} path.l {{ stroke-dasharray: {DASHES[dash_of(place)] or 'none'}; }}")
        pointed = f".group:has(.k{place}:is(:hover, :focus-visible))"
        rules.append(f"{pointed} .s:not(.s{place}) {{ opacity: .15; }}")
    return "\n".join(rules)


def dash_of(place: int) -> int:
    """Which of DASHES a method's lines have; the colours having come round, they have others."""
    return (place + place // COLOURS) % len(DASHES)
