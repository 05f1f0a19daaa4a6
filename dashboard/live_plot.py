"""Two small pieces of browser code: a chart that keeps zoom and legend, a badge that counts by itself.

`st.plotly_chart` is mounted anew whenever its data changes, which blanks it and forgets the zoom; this
component updates in place with `Plotly.react`, from the script the plotly package carries, served by our
own route. The badge computes its age in the browser. Prevents: a chart that jumps under the operator's
hand, and a frozen server that looks alive. No text of others ever becomes HTML here.
"""

from __future__ import annotations

PLOTLY_PATH = "/vendor/plotly.min.js"

LIVE_PLOT_JS = """
let loading = null;
function plotly() {
  if (window.Plotly) return Promise.resolve(window.Plotly);
  if (loading === null) {
    loading = new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = "/vendor/plotly.min.js";
      script.onload = () => resolve(window.Plotly);
      script.onerror = () => { loading = null; reject(new Error("plotly.min.js did not load")); };
      document.head.appendChild(script);
    });
  }
  return loading;
}
function painted(spec, from) {
  const css = getComputedStyle(from);
  const text = css.getPropertyValue("--st-text-color").trim() || css.color;
  const line = css.getPropertyValue("--st-border-color").trim() || "rgba(128,128,128,0.35)";
  const back = css.getPropertyValue("--st-background-color").trim() || "#fff";
  const layout = structuredClone(spec.layout);
  layout.font = {color: text, family: css.fontFamily, size: 12};
  layout.paper_bgcolor = "rgba(0,0,0,0)";
  layout.plot_bgcolor = "rgba(0,0,0,0)";
  layout.hoverlabel = {bgcolor: back, bordercolor: line, font: {color: text}};
  for (const note of layout.annotations || []) { if (!note.bgcolor) note.bgcolor = back; }
  for (const name of Object.keys(layout)) {
    if (/^[xy]axis[0-9]*$/.test(name)) {
      layout[name] = {gridcolor: line, linecolor: line, zerolinecolor: line, ...layout[name]};
    }
  }
  return layout;
}
export default function (component) {
  const { data, parentElement } = component;
  const box = parentElement.querySelector(".rk-plot");
  if (!box) return;
  box.style.height = data.height + "px";
  box.setAttribute("role", "img");
  box.setAttribute("aria-label", data.summary);
  const config = {displaylogo: false, responsive: true, modeBarButtonsToRemove: ["lasso2d", "select2d"]};
  plotly().then((Plotly) => {
    if (!box.isConnected) return;
    Plotly.react(box, data.spec.data, painted(data.spec, box), config);
  }).catch((problem) => { box.textContent = "The chart could not be drawn: " + problem.message; });
  return () => { if (window.Plotly) window.Plotly.purge(box); };
}
"""
LIVE_PLOT_HTML = '<div class="rk-plot"></div>'

#: What is read aloud is a state when it changes, not an age each second.
BADGE_HTML = '<span class="rk-badge"></span><span class="rk-said" role="status" aria-live="polite"></span>'
BADGE_CSS = """
.rk-badge { display: inline-block; padding: 0.15rem 0.6rem; border-radius: 0.4rem; font-size: 0.85rem;
  font-weight: 600; border: 1px solid currentColor;
  font-variant-numeric: tabular-nums; }
.rk-stale { color: #fff; background: #B4460A; border-color: #B4460A; }
.rk-fresh { color: var(--st-green-text-color, #0B6E4F); }
.rk-paused { color: var(--st-gray-text-color, #5B6672); }
.rk-said { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
"""
BADGE_JS = """
const timers = new WeakMap();
function words(seconds) {
  if (seconds < 90) return Math.floor(seconds) + " s";
  if (seconds < 5400) return Math.round(seconds / 60) + " min";
  return (seconds / 3600).toFixed(1) + " h";
}
export default function (component) {
  const { data, parentElement } = component;
  const badge = parentElement.querySelector(".rk-badge");
  const said = parentElement.querySelector(".rk-said");
  if (!badge || !said) return;
  const offset = data.server_ms - Date.now();
  const heard = Date.now();
  clearInterval(timers.get(badge));
  function draw() {
    const silence = (Date.now() - heard) / 1000;
    let name = "rk-fresh";
    let text;
    if (data.round_ms === null) {
      name = "rk-stale";
      text = data.away ? "NO DATA: the database is away" : "NO DATA: no scrape round yet";
    } else {
      const age = Math.max(0, (Date.now() + offset - data.round_ms) / 1000);
      const late = age >= data.stale_after_s;
      const lost = !data.paused && silence >= data.silence_after_s;
      text = "last scrape " + words(age) + " ago";
      if (late || lost || data.away) {
        name = "rk-stale";
        if (lost) text = "STALE: no update for " + words(silence);
        else text = "STALE: " + (data.away ? "database away, scrape " + words(age) + " ago" : text);
      } else if (data.paused) { name = "rk-paused"; text = "paused, " + text; }
    }
    badge.className = "rk-badge " + name;
    if (badge.textContent !== text) badge.textContent = text;
    const state = {"rk-fresh": "Up to date", "rk-paused": "Paused", "rk-stale": "Stale"}[name];
    if (said.textContent !== state) said.textContent = state;
  }
  draw();
  const timer = setInterval(draw, 1000);
  timers.set(badge, timer);
  return () => clearInterval(timer);
}
"""

GO_JS = """
export default function (component) {
  const next = window.location.pathname + window.location.search;
  window.location.assign(component.data.to + "?next=" + encodeURIComponent(next));
}
"""
