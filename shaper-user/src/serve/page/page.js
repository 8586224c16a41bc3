// Follows the controller's events and shows them. Text from processes only ever becomes text nodes.
"use strict";

const CLASSES = ["interactive", "default", "bulk"];
const LETTERS = { interactive: "I", default: "D", bulk: "B", reserved: "r", free: "" };
const STATES = { ok: "ok", local_queue: "local queue", gateway_degraded: "gateway degraded", paused: "paused", observe: "observes" };
/** Cells that are drawn one for each slot; more slots are drawn as shares. */
const SLOTS_DRAWN = 60;
const WAITERS_DRAWN = 60;
const ROWS_DRAWN = 50;
/** Seconds of the charts. */
const WINDOW = 300;
/** Seconds without an event after which what is shown is called old. */
const PATIENCE = 4;

const cards = new Map();
/** By lane: points with `at` in seconds, oldest first. */
const past = new Map();
let token = null;
let heard = 0;

const byId = (id) => document.getElementById(id);

// Text

/** A duration as the commands write it: two units at most, rounded down. */
function duration(seconds) {
  const whole = Math.floor(seconds);
  const two = (number) => String(number).padStart(2, "0");
  if (seconds <= 0) return "0s";
  if (whole === 0) return `${Math.floor(Math.round(seconds * 1e6) / 1e3)}ms`;
  if (whole < 10) return `${Math.floor(Math.round(seconds * 1e6) / 1e5) / 10}`.replace(/^(\d+)$/, "$1.0") + "s";
  if (whole < 60) return `${whole}s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}m${two(whole % 60)}s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)}h${two(Math.floor(whole / 60) % 60)}m`;
  return `${Math.floor(whole / 86400)}d${two(Math.floor(whole / 3600) % 24)}h`;
}

function byClass(counts) {
  const parts = CLASSES.filter((name) => counts[name] > 0).map((name) => `${counts[name]} ${name}`);
  return parts.join(", ");
}

/** Sets text only where it changes, so that selections and screen readers are left alone. */
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function make(name, className, text) {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

// Cells

function drawCells(element, parts, drawn, label) {
  const total = parts.reduce((sum, [, count]) => sum + count, 0);
  const shares = total > drawn;
  const key = `${shares} ${parts.map(([kind, count]) => kind + count).join(" ")}`;
  element.setAttribute("aria-label", label);
  if (element.dataset.drawn === key) return;
  element.dataset.drawn = key;
  element.classList.toggle("shares", shares);
  const cells = [];
  for (const [kind, count] of parts) {
    if (count === 0) continue;
    if (!shares) {
      for (let i = 0; i < count; i += 1) cells.push(make("span", `cell ${kind}`, LETTERS[kind]));
      continue;
    }
    const cell = make("span", `cell ${kind}`, `${LETTERS[kind]}${count}`);
    cell.style.flexGrow = String(count);
    cells.push(cell);
  }
  element.replaceChildren(...cells);
}

function drawSlots(element, lane) {
  const enforced = lane.mode === "enforce";
  const free = enforced ? Math.max(0, lane.effective_limit - lane.inflight) : 0;
  const reserved = Math.min(free, lane.reserve);
  const parts = CLASSES.map((name) => [name, lane.inflight_by_priority[name]]);
  parts.push(["free", free - reserved], ["reserved", reserved]);
  const used = byClass(lane.inflight_by_priority) || "none in use";
  const label = enforced
    ? `${lane.inflight} of ${lane.effective_limit} slots in use: ${used}; ${free} free, ${reserved} of them reserved for interactive`
    : `${lane.inflight} in flight: ${used}`;
  drawCells(element, parts, SLOTS_DRAWN, label);
}

/** The queue in the order in which it will go, as far as it is told. */
function drawQueue(element, lane, waiters) {
  const label = lane.queued === 0 ? "nobody waits" : `${lane.queued} wait: ${byClass(lane.queued_by_priority)}`;
  const order = waiters.slice(0, WAITERS_DRAWN).map((waiter) => waiter.priority);
  const rest = Math.max(0, lane.queued - order.length);
  const key = `${order.join(" ")} ${rest}`;
  element.setAttribute("aria-label", label);
  if (element.dataset.drawn === key) return;
  element.dataset.drawn = key;
  const cells = order.map((name) => make("span", `cell ${name}`, LETTERS[name]));
  if (rest > 0) cells.push(make("span", "cell rest", `+${rest}`));
  element.replaceChildren(...cells);
}

// Charts

function remember(at, points) {
  for (const point of points) {
    if (!past.has(point.lane)) past.set(point.lane, []);
    const series = past.get(point.lane);
    if (series.length > 0 && series[series.length - 1].at >= at) continue;
    series.push({ at, used: point.inflight, queued: point.queued, wait: point.oldest_wait_s });
    while (series.length > 0 && series[0].at < at - WINDOW) series.shift();
  }
}

/** An area from the foot of the chart, or only its upper edge. */
function path(series, now, top, value, closed) {
  if (series.length === 0) return "";
  const x = (point) => Math.max(0, WINDOW - (now - point.at)).toFixed(1);
  const y = (point) => (48 - (46 * value(point)) / top).toFixed(1);
  const line = series.map((point) => `${x(point)} ${y(point)}`).join(" L");
  if (!closed) return `M${line}`;
  return `M${x(series[0])} 48 L${line} L${x(series[series.length - 1])} 48 Z`;
}

function drawCharts(card, lane, now) {
  const series = past.get(lane.lane) ?? [];
  const peak = (value) => series.reduce((most, point) => Math.max(most, value(point)), 0);
  const longest = peak((point) => point.wait);
  const busiest = peak((point) => point.used + point.queued);
  const set = (name, d) => card.querySelector(name).setAttribute("d", d);
  const longestTop = Math.max(longest, 1);
  set(".wait .area", path(series, now, longestTop, (point) => point.wait, true));
  set(".wait .line", path(series, now, longestTop, (point) => point.wait, false));
  const busiestTop = Math.max(busiest, lane.effective_limit, 1);
  set(".work .queue", path(series, now, busiestTop, (point) => point.used + point.queued, true));
  set(".work .used", path(series, now, busiestTop, (point) => point.used, true));
  setText(card.querySelector('[data-field="chart_wait"]'), `peak ${duration(longest)}`);
  setText(card.querySelector('[data-field="chart_work"]'), `peak ${busiest}`);
  card.querySelector(".wait").setAttribute("aria-label", `oldest wait over five minutes, at most ${duration(longest)}`);
  card.querySelector(".work").setAttribute("aria-label", `in flight and queued over five minutes, at most ${busiest}`);
}

// Lanes

function cardOf(name) {
  const known = cards.get(name);
  if (known) return known;
  const card = byId("lane").content.firstElementChild.cloneNode(true);
  card.dataset.lane = name;
  const heading = card.querySelector("h2");
  heading.id = `lane-${name}`;
  card.setAttribute("aria-labelledby", heading.id);
  for (const button of card.querySelectorAll("[data-do]")) {
    button.addEventListener("click", () => change(card, button.dataset.do));
  }
  card.querySelector(".changes").addEventListener("submit", (event) => {
    event.preventDefault();
    change(card, "limit");
  });
  cards.set(name, card);
  return card;
}

function drawLane(card, lane, words, waiters, now) {
  const field = (name, text) => setText(card.querySelector(`[data-field="${name}"]`), text);
  field("lane", lane.lane);
  field("diagnosis", STATES[lane.diagnosis] ?? lane.diagnosis);
  card.querySelector(".state").dataset.state = lane.diagnosis;
  field("words", words);
  field("inflight", String(lane.inflight));
  field("of_limit", lane.mode === "enforce" ? ` of ${lane.effective_limit}` : " in flight");
  field("inflight_by_priority", byClass(lane.inflight_by_priority));
  field("queued", String(lane.queued));
  field("of_queue", lane.mode === "enforce" ? `of ${lane.max_queue} at most` : "");
  field("queued_by_priority", byClass(lane.queued_by_priority));
  field("oldest_wait", duration(lane.oldest_wait_s));
  field("wait_p50", duration(lane.wait_p50_s_5m));
  field("wait_p90", duration(lane.wait_p90_s_5m));
  for (const name of ["queue_timeouts_5m", "refusals_5m", "idle_connections"]) field(name, String(lane[name]));
  for (const name of ["queue_timeouts_5m", "refusals_5m"]) {
    card.querySelector(`[data-field="${name}"]`).classList.toggle("some", lane[name] > 0);
  }
  drawSlots(card.querySelector('[data-cells="slots"]'), lane);
  drawQueue(card.querySelector('[data-cells="queue"]'), lane, waiters);
  drawCharts(card, lane, now);
  drawWaiters(card.querySelector(".waiters"), lane, waiters);
  drawAccounts(card.querySelector(".accounts"), lane.accounts);
  const limit = card.querySelector('[name="limit"]');
  if (document.activeElement !== limit && limit.dataset.was !== String(lane.limit)) {
    limit.value = limit.dataset.was = String(lane.limit);
  }
  card.querySelector('[data-do="resume"]').disabled = lane.paused_until === null;
  card.querySelector('[data-do="pause"]').disabled = lane.mode !== "enforce";
}

function classCell(name, effective) {
  const cell = make("td");
  cell.append(make("span", `cell ${name}`, LETTERS[name]), effective && effective !== name ? `${name} → ${effective}` : name);
  cell.firstChild.setAttribute("aria-hidden", "true");
  return cell;
}

function drawRows(body, rows) {
  body.replaceChildren(...rows.map((cells) => {
    const row = make("tr");
    row.append(...cells);
    return row;
  }));
}

function drawWaiters(details, lane, waiters) {
  details.hidden = lane.queued === 0;
  if (details.hidden || !details.open) return;
  const rows = waiters.slice(0, ROWS_DRAWN).map((waiter) => [
    make("td", "", String(waiter.position)),
    classCell(waiter.priority, waiter.effective_priority),
    make("td", "", waiter.account ?? "–"),
    make("td", "", waiter.command ?? "–"),
    make("td", "number wide", String(waiter.pid)),
    make("td", "number", duration(waiter.wait_s)),
    make("td", "number wide", duration(waiter.queue_timeout_s)),
    make("td", "wide", waiter.stage),
  ]);
  drawRows(details.querySelector("tbody"), rows);
  const more = lane.queued - rows.length;
  setText(details.querySelector(".more"), more > 0 ? `and ${more} more` : "");
}

function drawAccounts(details, accounts) {
  details.hidden = accounts.length === 0;
  if (details.hidden || !details.open) return;
  const busiest = [...accounts].sort((a, b) => b.queued - a.queued || b.inflight - a.inflight);
  drawRows(details.querySelector("tbody"), busiest.slice(0, ROWS_DRAWN).map((account) => [
    make("td", "", account.account),
    classCell(account.priority),
    make("td", "number", String(account.inflight)),
    make("td", "number", String(account.queued)),
  ]));
}

function drawAlerts(snapshot) {
  const alerts = [];
  if (snapshot.last_reload_error) {
    alerts.push(["bad", `The last reload was rejected, the configuration before it is in force:\n${snapshot.last_reload_error}`]);
  }
  for (const { reason, total } of snapshot.ungoverned) alerts.push(["", `Passed ungoverned: ${total} (${reason})`]);
  if (!snapshot.enabled) alerts.push(["", "No lane enforces its limit: nothing is held."]);
  const element = byId("alerts");
  const key = JSON.stringify(alerts);
  if (element.dataset.drawn === key) return;
  element.dataset.drawn = key;
  element.replaceChildren(...alerts.map(([kind, text]) => make("p", kind, text)));
}

function drawLook({ snapshot, waiters, words }) {
  const now = Date.parse(snapshot.generated_at) / 1000;
  remember(now, snapshot.lanes);
  setText(byId("version"), snapshot.version);
  drawAlerts(snapshot);
  const shown = snapshot.lanes.map((lane, index) => {
    const card = cardOf(lane.lane);
    drawLane(card, lane, words[index], waiters.waiters.filter((waiter) => waiter.lane === lane.lane), now);
    return card;
  });
  const main = byId("lanes");
  const gone = [...cards.keys()].filter((name) => !snapshot.lanes.some((lane) => lane.lane === name));
  for (const name of gone) {
    cards.delete(name);
    past.delete(name);
  }
  if (main.children.length !== shown.length || shown.some((card, index) => main.children[index] !== card)) {
    main.replaceChildren(...shown);
  }
  const time = byId("time");
  time.dateTime = snapshot.generated_at;
  setText(time, new Date(now * 1000).toLocaleTimeString());
  document.body.dataset.generated = snapshot.generated_at;
}

// Changes

async function change(card, what) {
  const lane = encodeURIComponent(card.dataset.lane);
  const output = card.querySelector("output");
  const form = card.querySelector(".changes");
  const bodies = {
    pause: { for: form.elements.how_long.value },
    resume: {},
    limit: { key: "max_inflight", value: form.elements.limit.value },
  };
  const done = {
    pause: (answer) => answer.said,
    resume: () => "not paused any more",
    limit: (answer) => [
      `${bodies.limit.key} = ${bodies.limit.value}, until a restart or a change of the lane's file`,
      ...answer.warnings.map((warning) => `warning: ${warning}`),
    ].join("; "),
  };
  try {
    const response = await fetch(`api/lanes/${lane}/${what === "limit" ? "set" : what}`, {
      method: "POST",
      headers: { authorization: `Bearer ${token}`, "content-type": "application/json" },
      body: JSON.stringify(bodies[what]),
    });
    if (response.status === 401) lock();
    const answer = await response.json();
    output.className = response.ok ? "" : "bad";
    setText(output, response.ok ? done[what](answer) : answer.error);
  } catch (error) {
    output.className = "bad";
    setText(output, `not done: ${error.message}`);
  }
}

function lock() {
  token = null;
  document.body.classList.remove("unlocked");
  showControls();
}

function showControls() {
  setText(byId("unlock"), token === null ? "Unlock changes" : "Lock changes");
  for (const form of document.querySelectorAll(".changes")) form.hidden = token === null;
}

byId("unlock").addEventListener("click", () => {
  if (token !== null) {
    lock();
    return;
  }
  byId("token").value = "";
  byId("ask").returnValue = "";
  byId("ask").showModal();
});

byId("ask").addEventListener("close", () => {
  if (byId("ask").returnValue === "ok" && byId("token").value) token = byId("token").value.trim();
  byId("token").value = "";
  showControls();
});

// The stream

function setLink(state, text) {
  byId("link").dataset.link = state;
  setText(byId("link"), text);
  document.body.classList.toggle("stale", state === "lost");
}

function follow() {
  const events = new EventSource("api/live");
  events.addEventListener("hello", ({ data }) => {
    const hello = JSON.parse(data);
    byId("unlock").hidden = !hello.changeable;
    past.clear();
    for (const { at, lanes } of hello.past.moments) remember(Date.parse(at) / 1000, lanes);
  });
  events.addEventListener("look", ({ data }) => {
    heard = Date.now();
    drawLook(JSON.parse(data));
    showControls();
    setLink("live", "live");
  });
  events.addEventListener("unreachable", ({ data }) => {
    heard = Date.now();
    setLink("lost", JSON.parse(data).error);
  });
  events.addEventListener("error", () => {
    // Connecting again is the browser's own work, unless it was turned away.
    if (events.readyState === EventSource.CLOSED) setTimeout(follow, 3000);
  });
}

setInterval(() => {
  if (Date.now() - heard > PATIENCE * 1000 && heard > 0) setLink("lost", "controller not reachable, trying again");
}, 1000);
follow();
