"""The style sheet of every HTML page: 360 pixels wide and more, light and dark, on paper light."""

STYLE = """
:root {
  color-scheme: light dark;
  --page: #ffffff; --panel: #f6f8fa; --ink: #1f2328; --faint: #59636e; --line: #d8dee4;
  --met: #1a7f37; --met-page: #dafbe1; --missed: #b3261e; --missed-page: #ffebe9; --shipped: #e6f5f0;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --page: #0d1117; --panel: #161b22; --ink: #e6edf3; --faint: #9aa4af; --line: #30363d;
    --met: #56d364; --met-page: #12261e; --missed: #ff8a80; --missed-page: #2d1315; --shipped: #10261f;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink); overflow-wrap: break-word;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
main { max-width: 66rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.55rem; line-height: 1.25; margin: 0 0 .4rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; }
header p { margin: 0 0 .45rem; font-size: 1.05rem; overflow-wrap: anywhere; }
small { color: var(--faint); font-size: .85em; font-weight: 400; }
code, pre { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; font-size: .86em; }
code { overflow-wrap: anywhere; }
pre { background: var(--panel); border: 1px solid var(--line); border-radius: 6px; padding: .8rem 1rem;
  white-space: pre-wrap; overflow-wrap: anywhere; margin: 0 0 .8rem; }
.command { user-select: all; -webkit-user-select: all; cursor: copy; }
.hidden { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
.badge { display: inline-block; margin-top: .8rem; padding: .15rem .75rem; border-radius: 999px;
  font-size: .95rem; font-weight: 600; }
.badge.met { color: var(--met); background: var(--met-page); }
.badge.missed { color: var(--missed); background: var(--missed-page); }
.scroll { overflow: auto; position: relative; }
.scroll.long { max-height: min(42rem, 80vh); }
.scroll:focus-visible, .command:focus-visible, summary:focus-visible { outline: 2px solid var(--ink);
  outline-offset: 2px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .93rem; }
caption { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
th, td { padding: .38rem .7rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
thead th { color: var(--faint); font-weight: 500; font-size: .85rem; vertical-align: bottom;
  position: sticky; top: 0; z-index: 1; background: var(--page); box-shadow: inset 0 -1px var(--line); }
tbody th { font-weight: 500; overflow-wrap: anywhere; min-width: 15rem; }
th code { overflow-wrap: normal; }
td:last-child:not(.n) { min-width: 18rem; }
.n { text-align: right; white-space: nowrap; }
thead .n { white-space: normal; min-width: 5.2rem; }
tr.shipped { background: var(--shipped); }
tr.faint th, tr.faint td { color: var(--faint); font-style: italic; }
tr.shipped th, tr.shipped td { font-weight: 650; }
td.mark { white-space: nowrap; font-weight: 600; }
tr.met .mark { color: var(--met); }
tr.missed .mark { color: var(--missed); }
.legend { color: var(--faint); font-size: .9rem; }
.panels { margin-bottom: .8rem; display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fit, minmax(min(24rem, 100%), 1fr)); }
.panels > figure:only-child { max-width: 38rem; }
figure { margin: 0; padding: .8rem; background: var(--panel); border: 1px solid var(--line);
  border-radius: 8px; }
figcaption { font-size: .9rem; font-weight: 600; margin-bottom: .3rem; }
svg { display: block; width: 100%; height: auto; overflow: visible; }
.keys { list-style: none; display: flex; flex-wrap: wrap; gap: .3rem 1.3rem; padding: 0; margin: .8rem 0; }
.keys li, .keys span { min-width: 0; overflow-wrap: anywhere; }
.keys li { display: flex; align-items: center; gap: .45rem; font-size: .93rem; }
svg.key { width: 36px; height: 18px; flex: none; }
.grid { stroke: var(--line); stroke-width: 1; }
.axis { stroke: var(--faint); stroke-width: 1; fill: none; }
.chord { stroke: var(--faint); stroke-width: 1.2; stroke-dasharray: 1.5 3; fill: none; }
.tick { fill: var(--faint); font-size: 12px; }
.line { stroke: var(--row); stroke-width: 1.7; fill: none; stroke-linejoin: round; }
.shipped .line { stroke-width: 3.2; }
.thin .line { stroke-width: 1; stroke-dasharray: 5 3; }
.thin.shipped .line { stroke-width: 1.6; }
.mark { fill: var(--row); }
.hit { fill: none; stroke: none; pointer-events: all; }
.hit:hover { stroke: var(--ink); stroke-width: 1.5; }
.small { grid-template-columns: repeat(auto-fit, minmax(min(9rem, 100%), 1fr)); }
.bar { fill: var(--row); }
.bar.rare { opacity: .35; }
.before { --row: #D55E00; }
.after { --row: #0072B2; }
@media screen and (prefers-color-scheme: dark) {
  .before { --row: #F28A3C; }
  .after { --row: #56B4E9; }
}
.thin .mark { fill: var(--panel); stroke: var(--row); }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .45rem 1.2rem; margin: 0; }
dt { color: var(--faint); }
dd { margin: 0; overflow-wrap: anywhere; }
dl + pre { margin-top: .8rem; }
details { margin-top: .9rem; }
summary { cursor: pointer; color: var(--faint); }
details[open] > summary { margin-bottom: .6rem; }
img { max-width: 100%; height: auto; background: #ffffff; border-radius: 6px; }
@media (max-width: 40rem) {
  main { padding: 1.2rem 1rem 3rem; }
  dl { grid-template-columns: minmax(0, 1fr); gap: .1rem; }
  dd { margin-bottom: .6rem; }
  th, td { padding: .38rem .45rem; }
  tbody th { min-width: 8.5rem; max-width: 9.5rem; position: sticky; left: 0; background: var(--page); }
  tr.shipped th { background: var(--shipped); }
  td:last-child:not(.n) { min-width: 15rem; }
  .panels .tick { font-size: 17px; }
  .panels.small .tick { font-size: 15px; }
  .panels { gap: .7rem; }
  figure { padding: .55rem; }
}
@media print {
  main { max-width: none; padding: 0; }
  body { font-size: 11px; }
  details { display: none; }
  .scroll, .scroll.long { overflow: visible; max-height: none; }
  table { font-size: 10px; }
  th, td { padding: .2rem .4rem; }
  tbody th, td:last-child:not(.n), thead .n { min-width: 0; }
  thead th { position: static; }
  h2 { break-after: avoid; }
  figure, tr, dd, pre { break-inside: avoid; }
  .panels { grid-template-columns: repeat(2, 1fr); }
  .panels.small { grid-template-columns: repeat(4, 1fr); }
}
"""
