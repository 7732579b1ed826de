/*
 * Live updates, keys and small comforts; every page works without it. Times are times.js's.
 *
 * Three rules it must never break: nothing a person typed is thrown away, a button never changes under a finger
 * (it is inert for half a second after a swap), and nothing approves a call that was not on the screen, whole.
 */

const ROOT = new URL("..", import.meta.url).pathname; // "/", or the path of TURNGATE_PUBLIC_URL
const KEYS_OFF = "turngate.keys-off";
const INERT_MS = 500;
const ARMED_MS = 6000;
const REST_MS = 120;
const LOOK_MS = 250;
const BOUNCE_MS = 300; // two presses nearer to each other are one: a key that bounces, or a finger that slipped
const REFRESH_EVERY_MS = 1000;
const HIDDEN_POLL_MS = 30_000;
const ANSWER_MS = 6000; // a connection that is dead takes a request and never answers
const SENDING_MS = 60_000;
const OPENING_MS = 8000; // until the event stream is open
const MISSED = 2.5; // heartbeats until it counts as dead
const BLIP_MS = 4000; // a stream that is open again within this time was not missed
const WATCH_MS = 500;
const EVENT_TYPES = [
  "run.started", "step.responded", "request.opened", "call.closed", "execution.started", "execution.finished",
  "execution.unknown", "request.decided", "request.expired", "decision.refused", "model.retrying", "run.handed_off",
  "run.model_switched", "run.ended", "request.approved_once", "request.approval_withdrawn", "request.reminded", "request.escalated",
  "request.delegated", "request.parked", "request.claimed", "request.claim_taken_over", "request.released",
  "request.commented", "grant.used", "grant.created", "grant.revoked", "run.interrupted", "run.paused", "run.resumed", "message.queued",
  "message.taken", "message.refused", "schedule.fired", "schedule.skipped", "schedule.waiting", "schedule.missed", "schedule.created", "schedule.changed",
  "schedule.paused", "schedule.resumed", "schedule.deleted", "request.superseded", "run.recovered", "request.rebuilt", "budget.used_up",
  "run.nudged", "run.model_fell_back", "context.compacted", "context.trimmed", "context.compaction_skipped",
  "context.carried_over", "call.judged",
];
const PROGRESS_LINES = 20;
const SPOKEN_CHARS = 50_000;
const RELOADS_LISTS = new Set([
  "run.started", "step.responded", "request.opened", "request.decided", "request.expired", "run.ended",
  "request.approved_once", "request.approval_withdrawn", "request.reminded", "request.escalated", "request.delegated", "request.parked",
  "request.claimed", "request.claim_taken_over", "request.released", "grant.used", "grant.created", "grant.revoked",
  "request.superseded", "run.interrupted", "run.paused", "run.resumed", "schedule.fired", "schedule.skipped", "schedule.waiting",
  "schedule.missed", "schedule.created", "schedule.changed", "schedule.paused", "schedule.resumed", "schedule.deleted",
]);
const PRESENCE_MS = 20_000;
const EDIT_MS = 400;
const TOAST_MS = 5000;
const RING_EVERY_MS = 2000;
const MOST_LOOKED_MS = 86_400_000;

const $ = (selector, root = document) => root.querySelector(selector);
const main = () => $("#main");
const say = (text) => { $("[data-say]").textContent = text; };
// On a connection that is dead, an answer never comes, and each such request holds one of the browser's few connections.
const ask = (address, options) => fetch(address, { ...options, signal: AbortSignal.timeout(ANSWER_MS) });
const readPage = async (answer) => new DOMParser().parseFromString(await answer.text(), "text/html");

/* What the person has typed */

function isChanged(control) {
  if (control.type === "hidden") return false;
  if (control.type === "checkbox" || control.type === "radio") return control.checked !== control.defaultChecked;
  if (control instanceof HTMLSelectElement) {
    const given = [...control.options].findIndex((option) => option.defaultSelected);
    return control.selectedIndex !== Math.max(0, given);
  }
  return "defaultValue" in control && control.value !== control.defaultValue;
}

function isTyping(element = document.activeElement) {
  return element instanceof HTMLTextAreaElement || element instanceof HTMLSelectElement
    || (element instanceof HTMLInputElement && element.type !== "button" && element.type !== "submit");
}

function isBusy() {
  if ("dirty" in main().dataset || (isTyping() && main().contains(document.activeElement))) return true;
  return [...main().querySelectorAll("input, textarea, select")].some(isChanged);
}

// What is being copied from a run's page is not taken from under the selection.
function isCopying() {
  const selection = getSelection();
  return main().dataset.page === "run" && selection !== null && !selection.isCollapsed && main().contains(selection.anchorNode);
}

document.addEventListener("selectionchange", () => {
  if (!$("[data-stale]").hidden && !isCopying() && !isBusy()) scheduleRefresh();
});

/* Progress of running tools */

// As the server marks it (visible.py): whatever a person cannot see, or would take for a space.
const HIDDEN = /(?! )[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}\p{Zs}\u115f\u1160\u3164\uffa0\u2800\u034f\u17b4\u17b5\u180b-\u180d\u180f\ufe00-\ufe0f\u{e0100}-\u{e01ef}]/u;
const MARK = /[\p{Mn}\p{Me}]/u;
const MARKS_IN_A_ROW = 4;
const progressLines = new Map(); // tool call → its newest lines; kept apart from the page, which may be swapped at any time

const LINES_STAY = "\n\t";

function visibleLine(text, stays = "") {
  const shown = Object.assign(document.createElement("bdi"), { lang: "", translate: false });
  let marks = MARKS_IN_A_ROW;
  for (const char of text.replaceAll("\r\n", "\n")) {
    marks = MARK.test(char) ? marks + 1 : 0;
    if (stays.includes(char) || !HIDDEN.test(char) && marks <= MARKS_IN_A_ROW) { shown.append(char); continue; }
    const code = char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    const text = { "\n": "⏎", "\t": "⇥" }[char] ?? `⟨U+${code}⟩`;
    shown.append(Object.assign(document.createElement("span"), { className: "hidden-char", textContent: text }));
  }
  shown.normalize();
  return shown;
}

function showProgress() {
  for (const list of main().querySelectorAll("[data-progress]")) {
    const atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 4;
    for (const each of progressLines.get(list.dataset.progress) ?? []) {
      if (each.n <= Number(list.dataset.n)) continue;
      list.dataset.n = each.n;
      const item = document.createElement("li");
      if (each.dropped) {
        const left = `${each.dropped.toLocaleString("en")} not shown`;
        item.append(Object.assign(document.createElement("span"), { className: "dim", textContent: left }), " ");
      }
      item.append(visibleLine(typeof each.payload === "string" ? each.payload : JSON.stringify(each.payload)));
      list.append(item);
    }
    while (list.children.length > PROGRESS_LINES) list.firstElementChild.remove();
    if (atEnd) list.scrollTop = list.scrollHeight;
  }
}

let drawing = null;

function onProgress(event) {
  const each = JSON.parse(event.data);
  if (each.run_id !== main().dataset.run) return; // a sub-agent's run has a page of its own
  const lines = progressLines.get(each.tool_call_id) ?? [];
  if (each.n <= (lines.at(-1)?.n ?? 0)) return; // kept progress comes again on every connection
  lines.push(each);
  progressLines.set(each.tool_call_id, lines.slice(-PROGRESS_LINES));
  drawing ??= requestAnimationFrame(draw);
}

/* Words of the model while it answers */

// The response that is streaming; kept apart from the page, which may be swapped at any time.
let spoken = { step: 0, attempt: 0, n: 0, parts: new Map(), reset: "", isStored: false };

function onDelta(event) {
  const each = JSON.parse(event.data);
  if (each.run_id !== main().dataset.run || each.step < spoken.step) return;
  if (each.step > spoken.step) spoken = { step: each.step, attempt: 0, n: 0, parts: new Map(), reset: "", isStored: false };
  if (spoken.isStored || each.attempt < spoken.attempt || (each.attempt === spoken.attempt && each.n <= spoken.n)) return;
  // The server keeps only so much of a long answer, and leaves out words that come faster than anyone reads.
  const isInPart = each.dropped > 0 || each.n > (each.attempt === spoken.attempt ? spoken.n : 0) + 1;
  if (each.reset !== null || each.attempt > spoken.attempt) {
    const wasShown = spoken.parts.size > 0;
    spoken.parts = new Map();
    if (each.reset !== null || wasShown) spoken.reset = each.reset ?? "it is asked again";
  }
  Object.assign(spoken, { attempt: each.attempt, n: each.n });
  for (const delta of each.deltas) {
    const part = spoken.parts.get(delta.part) ?? { kind: delta.kind, name: "", text: "", total: 0, isInPart: false };
    part.name ||= delta.tool_name;
    part.isInPart ||= isInPart;
    part.text = (part.text + delta.text).slice(-SPOKEN_CHARS);
    part.total += delta.text.length;
    spoken.parts.set(delta.part, part);
  }
  drawing ??= requestAnimationFrame(draw);
}

function showSpoken() {
  const section = $("[data-spoken]", main());
  if (section === null) return;
  const words = $("[data-said]", section);
  const speaks = spoken.parts.size > 0;
  section.hidden = !speaks && !spoken.reset && !("coming" in section.dataset);
  const [idle, waits] = [$("[data-idle]", section), $("#waits", section)];
  if (idle !== null) idle.textContent = speaks ? "the model is answering" : idle.dataset.idle;
  if (waits !== null) waits.hidden = speaks; // it was retried meanwhile; no event says so
  const reset = $("[data-reset]", section);
  reset.hidden = !spoken.reset;
  reset.replaceChildren("Its earlier words are void: ", visibleLine(spoken.reset));
  const attempt = `${spoken.step} ${spoken.attempt}`;
  for (const child of [...words.children]) {
    if (child.dataset.attempt !== attempt || !spoken.parts.has(Number(child.dataset.part))) child.remove();
  }
  for (const [place, part] of spoken.parts) {
    let shown = $(`[data-part="${place}"]`, words);
    if (shown === null) {
      shown = Object.assign(document.createElement("div"), { className: `spoken-${part.kind}` });
      Object.assign(shown.dataset, { part: place, attempt });
      shown.append(Object.assign(document.createElement("p"), { className: "label" }));
      const text = Object.assign(document.createElement("pre"), { className: "value text", tabIndex: 0 });
      text.setAttribute("role", "region");
      text.setAttribute("aria-label", "Its words");
      const inPart = { className: "dim", textContent: "Some of it is not shown before it is complete.", hidden: true };
      shown.append(Object.assign(document.createElement("p"), inPart), text);
      words.append(shown);
    }
    const [label, inPart, text] = shown.children;
    inPart.hidden = !part.isInPart;
    if (part.kind === "tool-call") label.replaceChildren("Calls ", visibleLine(part.name || "a tool"));
    else label.textContent = part.kind === "reasoning" ? "Reasoning" : "";
    label.hidden = label.textContent === "";
    text.hidden = part.total === 0;
    const fresh = part.total - Number(text.dataset.total ?? 0);
    if (fresh === 0) continue;
    text.dataset.total = part.total;
    const atEnd = text.scrollHeight - text.scrollTop - text.clientHeight < 8;
    // Into one element: text that runs from right to left must stay one text.
    if (text.firstElementChild === null) text.append(visibleLine(""));
    text.firstElementChild.append(...visibleLine(part.text.slice(-fresh), LINES_STAY).childNodes);
    text.firstElementChild.normalize();
    if (atEnd) text.scrollTop = text.scrollHeight; // a reader who has scrolled up is not disturbed
  }
}

function draw() {
  drawing = null;
  const held = isTyping() && main().contains(document.activeElement) ? document.activeElement : null;
  const place = held?.getBoundingClientRect().top;
  showProgress();
  showSpoken();
  // What appears above must not move the field in which someone types.
  if (held) scrollBy({ top: held.getBoundingClientRect().top - place, behavior: "instant" });
}

// The response is stored: its streamed words go when the page shows it, so that nothing flickers.
function onResponded(event) {
  const { run_id: runId, payload } = JSON.parse(event.data);
  if (runId === main().dataset.run && payload.step >= spoken.step) Object.assign(spoken, { step: payload.step, isStored: true });
}

/* Live updates */

let inertUntil = 0;
let seen = Number(document.body.dataset.seq ?? 0);
let source = null;
let timer = null;
let lastRefresh = 0;
let hiddenPoll = null;
let shownState = null; // of a page that has changed and was not swapped

const ANCHORS = "[id^=step-], [id^=call-], .final, .explanation, .task, .act, .row";

// Where an element of the page before is in the page at hand, if it is.
function kinOf(old) {
  if (old.id) return document.getElementById(old.id);
  const href = $("[data-open]", old)?.getAttribute("href");
  if (href) return $(`[data-open][href="${CSS.escape(href)}"]`, main())?.closest(".row") ?? null;
  return $(`.${old.className.split(" ")[0]}`, main());
}

// What the person looks at stays where it is on the screen, whatever comes or goes above it.
function anchored(change) {
  const held = scrollY < 40 ? null : [...main().querySelectorAll(ANCHORS)].find((each) => {
    const box = each.getBoundingClientRect();
    // What is sticky stays on the screen by itself, whatever moves.
    return box.bottom > 0 && box.height > 0 && box.top > -box.height / 2 && getComputedStyle(each).position !== "sticky";
  });
  const place = held?.getBoundingClientRect().top;
  change();
  const again = held ? kinOf(held) : null;
  if (again) scrollBy({ top: again.getBoundingClientRect().top - place, behavior: "instant" });
}

// While someone types on a run's page, all of it but the forms is updated; what they press does not move.
function swapAround(fresh) {
  const [old, kept, given] = [main(), $(".act", main()), $(".act", fresh)];
  const forms = (section) => [...section.querySelectorAll("form [name=action]")].map((each) => each.value).join();
  const isOutside = kept !== null && !kept.contains(document.activeElement) && isTyping() && old.contains(document.activeElement);
  if (kept?.parentElement !== old || given?.parentElement !== fresh || "dirty" in old.dataset || isOutside || isCopying()) return false;
  if (old.dataset.status !== fresh.dataset.status || forms(kept) !== forms(given)) return false;
  const open = new Map([...old.querySelectorAll("details[id]")].map((each) => [each.id, each.open]));
  const place = kept.getBoundingClientRect().top;
  for (const child of [...old.childNodes]) if (child !== kept) child.remove();
  const after = [];
  let isBehind = false;
  for (const child of [...fresh.childNodes]) {
    if (child === given) isBehind = true;
    else if (isBehind) after.push(document.adoptNode(child));
    else kept.before(document.adoptNode(child));
  }
  kept.after(...after);
  Object.assign(old.dataset, fresh.dataset);
  for (const each of old.querySelectorAll("details[id]")) if (open.has(each.id)) each.open = open.get(each.id);
  afterSwap();
  scrollBy({ top: kept.getBoundingClientRect().top - place, behavior: "instant" });
  return true;
}

function afterSwap() {
  $("[data-stale]").hidden = true;
  if (spoken.isStored || main().dataset.status !== "running") Object.assign(spoken, { parts: new Map(), reset: "" });
  showProgress();
  showSpoken();
}

function swap(fresh) {
  const old = main();
  const open = new Set([...old.querySelectorAll("details[open][id]")].map((each) => each.id));
  const closed = new Set([...old.querySelectorAll("details:not([open])[id]")].map((each) => each.id));
  const focused = document.activeElement?.id;
  const marked = $(".marked [data-open]", old)?.getAttribute("href");
  disarm();
  const [news, count] = [old.dataset.news, countOf()];
  const whatWasSeen = $("[data-must-see]", old)?.textContent;
  anchored(() => {
    old.replaceWith(document.adoptNode(fresh));
    for (const each of main().querySelectorAll("details[id]")) {
      if (open.has(each.id)) each.open = true;
      if (closed.has(each.id)) each.open = false;
    }
    afterSwap();
  });
  if ($("[data-must-see]")?.textContent !== whatWasSeen) { seenTo.fill(0); lookFrom(0); }
  lookAtRest();
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  if (marked) mark([...main().querySelectorAll("[data-open]")].find((link) => link.getAttribute("href") === marked));
  settle();
  tellNews(news, countOf() - count);
}

// A press that was meant for what was there before does nothing.
function settle() {
  inertUntil = performance.now() + INERT_MS;
  main().classList.add("settling");
  setTimeout(() => main().classList.remove("settling"), INERT_MS);
}

// A page that knows what is new says only that, once: a run that works for hours is not announced step by step.
function tellNews(before, added = 0) {
  const { news } = main().dataset;
  if (added > 0) say(`${added} new request${added === 1 ? "" : "s"}.`);
  else if (news === undefined) say("The page has changed.");
  else if (news !== before) say(news);
}

// How many requests the inbox shows; 0 on other pages.
function countOf() {
  return Number($("[data-count]", main())?.dataset.count ?? 0);
}

// The request ended while someone typed here: nothing can be sent any more, and what was typed stays.
function endHere(news) {
  disarm();
  for (const button of main().querySelectorAll("#decision button, form.claim button")) button.disabled = true;
  return `${news} Nothing can be decided here any more.`;
}

// Of several calls that are reviewed together, say which ones someone else has decided meanwhile.
function tellOfOne({ request_id: id, by, status }) {
  const note = id && status ? $(`[data-of="${CSS.escape(id)}"] [data-meanwhile]`, main()) : null;
  if (note === null) return;
  note.replaceChildren(visibleLine(by ?? "No one"), ` has ${status} this meanwhile.`); // it lies above the page: nothing moves
  say(note.textContent);
}

/* The count on the app's icon, and a sound for those who want one */

let waiting = null;
let sound = null;
let rangAt = -Infinity;

function tellCount() {
  const badge = $("[data-badge]");
  if (badge === null) return; // no one is logged in
  const count = Number(badge.dataset.badge);
  navigator.setAppBadge?.(count).catch(() => {}); // 0 takes it away; a browser in which the page isn't installed may refuse
  if (waiting !== null && count > waiting && "sound" in document.body.dataset) ring();
  waiting = count;
}

// Two short notes. A browser lets a page sound only after a click or a key in it, and many requests at once ring once.
function ring() {
  if (!navigator.userActivation?.hasBeenActive || performance.now() - rangAt < RING_EVERY_MS) return;
  rangAt = performance.now();
  sound ??= new AudioContext();
  for (const [after, pitch] of [[0, 880], [0.16, 1175]]) {
    const [tone, volume, at] = [sound.createOscillator(), sound.createGain(), sound.currentTime + after];
    tone.frequency.value = pitch;
    volume.gain.setValueAtTime(0.12, at);
    volume.gain.exponentialRampToValueAtTime(0.001, at + 0.3);
    tone.connect(volume).connect(sound.destination);
    tone.start(at);
    tone.stop(at + 0.3);
  }
}

// Bring the page up to date. Tells whether it now shows what the server has: "same", "changed", or "unknown" without an answer.
async function refresh() {
  if ($("form[data-sent]", main()) !== null) return "same"; // the answer to what was sent is about to be shown
  lastRefresh = performance.now();
  if (main().dataset.page === "bulk") return refreshPicked();
  let answer;
  let page;
  try {
    answer = await ask(location.pathname + location.search, { headers: { Accept: "text/html" }, cache: "no-store" });
    page = await readPage(answer);
  } catch {
    return "unknown"; // the server is away; the next event or the next visit of the page tries again
  }
  if (answer.redirected && new URL(answer.url).pathname === `${ROOT}login`) {
    if (isEnded()) return "unknown";
    if (isBusy()) tellUnsent("ended");
    else location.assign(`${ROOT}login`);
    return "changed";
  }
  if (answer.status >= 500) return "unknown";
  if (!answer.ok) return "same"; // what is sent gets the same answer, and its page says why
  const fresh = $("#main", page);
  if (fresh === null) return "same";
  document.title = page.title;
  const [badge, freshBadge] = [$("[data-badge]"), $("[data-badge]", page)];
  if (badge && freshBadge) badge.replaceWith(document.adoptNode(freshBadge));
  tellCount();
  for (const old of main().querySelectorAll("[data-fresh]")) {
    const given = fresh.querySelector(`#${old.id}[data-fresh]`);
    if (given !== null && given.innerHTML !== old.innerHTML) old.replaceChildren(...given.cloneNode(true).childNodes);
  }
  if (!("live" in main().dataset) || fresh.dataset.state === main().dataset.state) return "same";
  if (isBusy() || isCopying()) {
    const news = main().dataset.news;
    if (main().dataset.page === "run" && swapAround(fresh)) { tellNews(news); return "changed"; }
    const isKnown = shownState === fresh.dataset.state;
    shownState = fresh.dataset.state;
    const bar = $("[data-stale]");
    const words = "ended" in fresh.dataset ? endHere(fresh.dataset.news) : "This page has changed since you opened it.";
    $("[data-stale-words]", bar).textContent = words;
    $("[data-typed]", bar).hidden = !isBusy();
    $("a", bar).href = location.pathname + location.search;
    bar.hidden = false;
    say(words);
    return isKnown ? "same" : "changed";
  }
  swap(fresh);
  return "changed";
}

// What was picked isn't what the page's address gets, so it is sent once more. What is no longer pending isn't offered any more;
// the page stays, with what was typed.
async function refreshPicked() {
  const form = $("form[data-picked]", main());
  if (form === null) return "same";
  const picked = [...form.querySelectorAll("[name^=pick-], [name^=reject-]")];
  const body = new URLSearchParams({ csrf_token: form.elements.csrf_token.value });
  for (const each of picked) body.set(each.name.replace("reject-", "pick-"), each.value);
  let page;
  try {
    const answer = await ask(`${ROOT}requests/bulk`, { method: "POST", body, headers: { Accept: "text/html" } });
    if (answer.status >= 500) return "unknown";
    page = await readPage(answer);
  } catch {
    return "unknown";
  }
  if ($("#main", page)?.dataset.page !== "bulk") return "same"; // what is sent gets the same answer, and its page says why
  const gone = picked.filter((each) => page.getElementsByName(each.name).length === 0);
  for (const each of gone) leaveOut(each);
  if (gone.length === 0) return "same";
  const [approved, all] = [form.querySelectorAll("[name^=pick-]").length, form.querySelectorAll("[name^=pick-], [name^=reject-]").length];
  for (const [button, count] of [["approve", approved], ["reject", all]]) {
    for (const each of form.querySelectorAll(`button[value=${button}]`)) {
      $("[data-many]", each).textContent = count;
      each.disabled = count === 0;
    }
  }
  settle();
  return "changed";
}

function leaveOut(pick) {
  const note = $(`[data-of="${CSS.escape(pick.name.replace(/^(pick|reject)-/, ""))}"] [data-meanwhile]`, main());
  pick.remove();
  if (note === null || note.textContent !== "") return;
  note.textContent = "This is no longer pending.";
  say(note.textContent);
}

function scheduleRefresh() {
  if (timer !== null) return;
  const wait = Math.max(60, REFRESH_EVERY_MS - (performance.now() - lastRefresh));
  timer = setTimeout(() => { timer = null; void refresh(); }, wait);
}

function onEvent(event) {
  signOfLife();
  seen = Math.max(seen, Number(event.lastEventId) || 0);
  let runId = null;
  try {
    const { run_id: ofRun, payload } = JSON.parse(event.data);
    runId = ofRun;
    if (event.type === "request.decided" && main().dataset.page === "bulk") tellOfOne(payload);
  } catch { /* an event we cannot read still says that something changed */ }
  if (RELOADS_LISTS.has(event.type) || runId === main().dataset.run) scheduleRefresh();
}

function listen() {
  if (!document.body.dataset.seq || source !== null) return;
  const whose = encodeURIComponent(main().dataset.page === "run" ? main().dataset.run : "none");
  [isAlive, quietSince, patience] = [false, Date.now(), OPENING_MS];
  source = new EventSource(`${ROOT}api/v1/events?after=${seen}&progress=${whose}&deltas=${whose}&heartbeats=true`);
  source.addEventListener("open", () => { patience = Infinity; signOfLife(); }); // until the first heartbeat tells the pace
  source.addEventListener("heartbeat", (event) => { patience = Number(event.data) * 1000 * MISSED; signOfLife(); });
  for (const type of EVENT_TYPES) source.addEventListener(type, onEvent);
  source.addEventListener("step.responded", onResponded);
  source.addEventListener("delta", onDelta);
  source.addEventListener("progress", onProgress);
  source.addEventListener("error", () => {
    [isAlive, quietSince, patience] = [false, Date.now(), OPENING_MS];
    const before = aliveAt;
    setTimeout(() => { if (aliveAt === before && !document.hidden) lose(); }, BLIP_MS);
    // The browser tries again by itself unless the server refused; then the page itself says why (a login, mostly).
    if (source?.readyState === EventSource.CLOSED) { source = null; setTimeout(() => { listen(); void refresh(); }, 5000); }
  });
}

function hangUp() {
  source?.close();
  source = null;
  isAlive = false;
}

// The last sign of life may be long ago: connect again, and look at once.
function reconnect() {
  if (document.hidden) return;
  hangUp();
  listen();
  void refresh();
}

/* Whether what the page shows is up to date */

// A connection that a NAT or a VPN drops, or a computer that slept, stays open for this side, and silent. So the server sends
// heartbeats. The wall clock counts, because the other one may stop while the computer sleeps.
let [isAlive, aliveAt, quietSince, patience] = [false, Date.now(), Date.now(), OPENING_MS];
let isLost = false;

const isLive = () => isAlive && !isLost && Date.now() - quietSince < patience;

function signOfLife() {
  isAlive = true;
  aliveAt = quietSince = Date.now();
  if (!isLost) return;
  isLost = false;
  showLink();
  say("Connected again.");
  void refresh();
}

function lose() {
  if (isLost || !document.body.dataset.seq) return;
  isLost = true;
  showLink();
  say($("[data-link]").innerText);
}

function showLink() {
  const [bar, since] = [$("[data-link]"), $("[data-link] time")];
  since.dateTime = new Date(aliveAt).toISOString();
  since.textContent = new Date(aliveAt).toLocaleTimeString("sv-SE", { hour: "2-digit", minute: "2-digit", timeZoneName: "short" });
  $("[data-offline]", bar).hidden = navigator.onLine;
  bar.hidden = !isLost;
}

setInterval(() => {
  if (source === null || Date.now() - quietSince < patience) return;
  lose();
  reconnect();
}, WATCH_MS);
addEventListener("offline", () => { isAlive = false; lose(); showLink(); });
addEventListener("online", () => { showLink(); reconnect(); });

// A browser keeps six connections to one host open at most: a hidden page gives its stream back and looks now and then.
document.addEventListener("visibilitychange", () => {
  clearInterval(hiddenPoll);
  hiddenPoll = document.hidden ? setInterval(refresh, HIDDEN_POLL_MS) : null;
  if (document.hidden) hangUp();
  else reconnect();
});
addEventListener("pagehide", hangUp);
addEventListener("pageshow", (event) => {
  for (const form of document.querySelectorAll("form[data-sent]")) delete form.dataset.sent;
  if (event.persisted) reconnect();
});

/* Who else looks at a request */

async function tellPresence() {
  const { page, request } = main().dataset;
  if (page !== "request" || !request || document.hidden) return;
  let others;
  try {
    const answer = await ask(`${ROOT}api/v1/requests/${encodeURIComponent(request)}/presence`, {
      method: "POST", headers: { "Content-Type": "application/json" }, body: "{}",
    });
    if (!answer.ok) return;
    others = (await answer.json()).looking ?? [];
  } catch {
    return; // the next sign tries again
  }
  const line = $("[data-presence]");
  if (line === null) return;
  line.hidden = others.length === 0;
  line.replaceChildren("Also looking at this: ");
  others.forEach((each, place) => line.append(place ? ", " : "", visibleLine(each.name)));
}

/* Buttons and forms */

for (const type of ["click", "submit"]) {
  document.addEventListener(type, (event) => {
    if (performance.now() >= inertUntil || !main().contains(event.target)) return;
    if (type === "click" && !event.target.closest("button")) return;
    event.preventDefault();
    event.stopPropagation();
    say("The page has just changed. Check it, then press again.");
  }, true);
}

// Why nothing can be sent now: "ended", a session, or "away", a server. Once it was sent: "lost" or "unsure", the answer, or "refused".
async function hindrance() {
  try {
    const { status } = await ask(`${ROOT}api/v1/me`, { cache: "no-store" });
    if (status === 401) return "ended";
    return status >= 500 ? "away" : null;
  } catch {
    return "away";
  }
}

// The page stays, with what was typed, and says next to the button what to do.
function tellUnsent(why, form = null, words = null) {
  for (const note of document.querySelectorAll("[data-unsent-note]")) note.remove();
  if (why === null) return;
  const note = document.importNode($(`template[data-unsent="${why}"]`).content, true);
  $("[data-words]", note)?.append(...document.adoptNode(words).childNodes);
  if (form === null) main().prepend(note);
  else form.append(note);
}

// Before anything is sent, the page asks whether it can be, and looks if it may be out of date. What was decided meanwhile is
// shown, and nothing is sent; without an answer nothing is sent either, and what was typed stays.
async function lookThenSend(form, button) {
  form.dataset.looking = "yes";
  const wasLive = isLive();
  let why = await hindrance();
  const isCurrent = wasLive && main().dataset.page !== "bulk"; // an event says of one call that it changed, and not of all
  const status = why !== null || isCurrent ? "same" : await refresh();
  delete form.dataset.looking;
  if (why === null && isEnded()) return logInSeen();
  if (status === "unknown") why = "away";
  if (why === "away" && !wasLive) lose();
  tellUnsent(why, form);
  if (why === "ended") void openLogin();
  if (why !== null || status === "changed" || !form.isConnected || button?.matches(":disabled")) return;
  form.dataset.looked = "yes";
  form.requestSubmit(button);
}

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (event.defaultPrevented || !document.body.dataset.seq || form.method !== "post" || !main().contains(form)) return;
  if (form.dataset.looked) { delete form.dataset.looked; return; }
  event.preventDefault();
  event.stopPropagation();
  if (!form.dataset.looking) void lookThenSend(form, event.submitter);
}, true);

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (event.defaultPrevented || !main().contains(form)) return;
  if (form.dataset.sent) { event.preventDefault(); return; }
  form.dataset.sent = "yes";
  // What was typed in the page's other forms goes along, so that an error page can show it again. A name goes once.
  for (const control of main().querySelectorAll("textarea[name], input[name], select[name]")) {
    if (form.elements.namedItem(control.name) !== null || !isChanged(control) || control.disabled) continue;
    const kept = Object.assign(document.createElement("input"), { type: "hidden", name: control.name, value: control.value });
    kept.dataset.alongside = "yes";
    form.append(kept);
  }
  tellLook(form);
  const hasText = "part" in form.dataset || $(TYPED, form) !== null;
  const isKept = form.method === "post" && main().dataset.page !== "bulk" && hasText && $("[type=password]", form) === null;
  if (!isKept) {
    setTimeout(() => delete form.dataset.sent, 5000); // in case the person has stopped the page from loading
    return;
  }
  event.preventDefault();
  void send(form, event.submitter);
});

// A form in which someone types is sent from the page, which stays until the answer is there: a server that goes away in between
// takes no text with it.
const TYPED = "textarea, input:not([type]), input[type=text], input[type=date], input[type=datetime-local]";
// What the server does once, however often it arrives.
const KEYED = "[name=key], [name=decision_id], [name=comment_key]";

async function send(form, button) {
  const body = new URLSearchParams(new FormData(form, button));
  for (const control of form.querySelectorAll("[data-alongside]")) control.remove();
  let answer;
  let page;
  try {
    const address = button?.getAttribute("formaction") ?? form.getAttribute("action") ?? location.href;
    answer = await fetch(address, { method: "POST", body, headers: { Accept: "text/html" }, signal: AbortSignal.timeout(SENDING_MS) });
    page = await readPage(answer);
  } catch {
    delete form.dataset.sent;
    tellUnsent($(KEYED, form) === null ? "unsure" : "lost", form);
    return;
  }
  if (answer.ok && showPart(form, page)) return;
  if (answer.redirected && new URL(answer.url).pathname !== `${ROOT}login`) {
    const isHere = answer.url === location.href.split("#")[0];
    location.assign(answer.url + (form.dataset.then ?? "")); // an answer's address has lost what comes after its #
    if (isHere && form.dataset.then) location.reload();
    return;
  }
  delete form.dataset.sent;
  const problem = $("#main[data-page=error] pre", page) ?? ("part" in form.dataset ? $("#attempt", page) : null);
  if (answer.redirected || answer.status === 401) { tellUnsent("ended", form); void openLogin(); }
  else if (problem !== null) tellUnsent("refused", form, problem);
  else showAnswer(page);
}

// A log-in in place: the page stays, with what was typed. Any page of this browser that someone has logged in to tells the others.
const tabs = new BroadcastChannel(`turngate ${ROOT}`);
const isEnded = () => $("[data-log-in]") !== null;

async function openLogin() {
  try {
    showLogin(await readPage(await ask(`${ROOT}login`, { headers: { Accept: "text/html" } })));
  } catch {
    return tellUnsent("away", $("[data-log-in]")?.closest("form"));
  }
  if (isEnded() && !$("#login").open) $("#login").showModal();
}

// What the log-in page says: its forms, and what was wrong. Another page's words are a refusal, such as of too many tries.
function showLogin(page) {
  const problem = $("#main[data-page=error] pre", page);
  if (problem !== null) refuseLogin(problem.textContent);
  else $("[data-login]").replaceChildren(...document.adoptNode($("#main .narrow", page)).childNodes);
}

function refuseLogin(words) {
  $("#login .warn")?.remove();
  const note = Object.assign(document.createElement("p"), { className: "warn", role: "alert", textContent: words });
  $("#login-title").after(note);
}

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("[data-log-in], #login a");
  if (!link || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  if ("logIn" in link.dataset) void openLogin();
  else open(`${link.href}?window=true`, "_blank", "popup,width=640,height=800"); // the OpenID provider's
});

$("#login").addEventListener("submit", async (event) => {
  const form = event.target;
  if (form.method === "dialog") return;
  event.preventDefault();
  if (form.dataset.sent) return;
  form.dataset.sent = "yes";
  try {
    const body = new URLSearchParams(new FormData(form));
    const answer = await fetch(form.action, {
      method: "POST", body, headers: { Accept: "text/html" }, redirect: "manual", signal: AbortSignal.timeout(SENDING_MS),
    });
    if (answer.type === "opaqueredirect") { tabs.postMessage("logged in"); await logInSeen(); }
    else showLogin(await readPage(answer));
  } catch {
    refuseLogin("The server does not answer. Try again.");
  }
  delete form.dataset.sent;
  $("#login [type=password]")?.focus();
});

// The same person's forms count again. Another person's don't: the server shows them again, with what was typed, and sends nothing.
async function logInSeen() {
  if (!isEnded()) return;
  let page;
  try {
    page = await readPage(await ask(`${ROOT}account`, { headers: { Accept: "text/html" } }));
  } catch {
    return; // the next press of a button looks again
  }
  const [was, now] = [$(".who .name"), $(".who .name", page)];
  if (now === null || !isEnded()) return;
  const form = $("[data-log-in]").closest("form");
  $("#login").close();
  if (was.textContent === now.textContent) {
    for (const each of document.getElementsByName("csrf_token")) each.value = $("[name=csrf_token]", page).value;
    tellUnsent("again", form);
  } else {
    const name = Object.assign(document.createElement("b"), { textContent: now.textContent });
    $(".who").replaceWith(document.adoptNode($(".who", page)));
    offerHelp();
    tellUnsent("other", form, name);
  }
  reconnect();
}

tabs.addEventListener("message", logInSeen);

// A form that isn't the page's decision changes only its own part of the page: an edit that isn't sent stays as it is.
function showPart(form, page) {
  const [old, fresh] = [document, page].map((each) => each.getElementById(form.dataset.part));
  if (fresh === null) return false;
  tellUnsent(null);
  const { state, ended } = $("#main", page).dataset;
  if (ended === undefined) main().dataset.state = state; // this person's own change isn't news
  const hadFocus = old.contains(document.activeElement);
  anchored(() => old.replaceWith(document.adoptNode(fresh)));
  if (fresh.matches("[data-must-see]")) { closeFolds(); seenTo.fill(0); }
  lookAtRest();
  if (hadFocus) main().focus({ preventScroll: true });
  return true;
}

// The page with which the server answers a form: what is wrong with what was typed, or what it would do.
function showAnswer(page) {
  disarm();
  document.title = page.title;
  main().replaceWith(document.adoptNode($("#main", page)));
  seenTo.fill(0);
  startPage();
  const first = $("[autofocus]", main());
  if (first === null) scrollTo({ top: 0, behavior: "instant" });
  else first.focus();
}

document.addEventListener("input", (event) => {
  const control = event.target;
  const state = control.name ? document.getElementById(`${control.name}-state`) : null;
  if (state !== null && control.value !== "") state.value = "value";
});

// What an edit would change is said below its form while it is typed. The server says it, as it does without this script.
let editTimer = null;

async function lookAtEdit(form, action) {
  const body = new URLSearchParams(new FormData(form));
  body.set("look", action);
  let answer;
  try {
    answer = await ask(form.getAttribute("action"), { method: "POST", body, headers: { Accept: "text/html" } });
  } catch {
    return; // the next change tries again
  }
  const fresh = (await readPage(answer)).getElementById(`edits-${action}`);
  const old = document.getElementById(`edits-${action}`);
  if (fresh === null || old === null || editTimer !== null) return;
  closeFolds(fresh);
  if ("count" in fresh.dataset) old.dataset.count = fresh.dataset.count;
  old.replaceChildren(...document.adoptNode(fresh).childNodes);
  tellEdits();
}

const isOfEdit = ({ name }) => name.startsWith("edit-") && !name.endsWith("-confirm");

// While the form differs from the call, the act at hand is to approve the call with these changes, and the plain one is gone.
function tellEdits() {
  const form = document.getElementById("form-edit");
  if (form === null) return;
  const changed = [...form.elements].filter((each) => isOfEdit(each) && isChanged(each));
  const counts = [...form.querySelectorAll(".edits[data-count]")].map((each) => Number(each.dataset.count));
  const isEdited = counts.length > 0 ? counts.some((each) => each > 0) : changed.length > 0 || $("[data-was-edited]", form) !== null;
  const count = Math.max(0, ...counts);
  for (const each of main().querySelectorAll("[data-plain], [data-edited]")) {
    each.hidden = ("plain" in each.dataset) === isEdited;
    if (each instanceof HTMLButtonElement && !("waits" in each.dataset)) each.disabled = each.hidden;
    if (each.name === "as" && "edited" in each.dataset && changed.length > 0) each.value = changed.some((one) => one.name === "edit-json") ? "raw" : "edited";
  }
  for (const each of main().querySelectorAll("[data-edited-label]")) {
    each.textContent = `Approve with ${count > 0 ? count : "your"} change${count === 1 ? "" : "s"}`;
  }
  if (armed?.button.hidden) disarm();
}

document.addEventListener("input", (event) => {
  const form = event.target.form;
  if (form?.dataset?.form !== "edit" || !isOfEdit(event.target)) return;
  for (const each of form.querySelectorAll(".edits")) delete each.dataset.count; // until the server has counted again
  tellEdits();
  clearTimeout(editTimer);
  const action = event.target.name === "edit-json" ? "edit-json" : "edit";
  editTimer = setTimeout(() => { editTimer = null; void lookAtEdit(form, action); }, EDIT_MS);
});

// What a rule means is said while it is typed. The server says it, as its button does without this script.
const MOST_QUERY_CHARS = 8_000; // of an address; a longer rule has the button
let ruleTimer = null;

async function lookAtRule(form) {
  const words = new URLSearchParams(new FormData(form));
  words.delete("csrf_token");
  if (words.toString().length > MOST_QUERY_CHARS) return;
  let answer;
  try {
    answer = await ask(`${ROOT}policy/rule/means?${words}`, { headers: { Accept: "text/html" } });
  } catch {
    return; // the next change tries again
  }
  const fresh = (await readPage(answer)).getElementById("means");
  if (fresh !== null && ruleTimer === null) document.getElementById("means")?.replaceChildren(...document.adoptNode(fresh).childNodes);
}

document.addEventListener("input", (event) => {
  const form = event.target.form;
  if (!form || !("rule" in form.dataset)) return;
  clearTimeout(ruleTimer);
  ruleTimer = setTimeout(() => { ruleTimer = null; void lookAtRule(form); }, EDIT_MS);
});

document.addEventListener("change", (event) => {
  const field = document.getElementById(event.target.dataset?.stateOf ?? "");
  if (field !== null && event.target.value === "value") field.focus();
});

/* What was on the screen */

// How far down the call was on the screen, in pixels and without a gap, in each of some columns: a person who has zoomed in
// sees a part of each line. What flies past does not count: only where the page rests, and what two looks a quarter of a
// second apart have in common.
const COLUMNS = 16;
let seenTo = Array(COLUMNS).fill(0);
let layout = { width: innerWidth, height: 0, open: [] };
let lastLook = null;
let resting = null;

// Where lines have moved, what was seen of them does not count any more: below a fold that was opened or closed, or everywhere.
// A tenth of the height: a word such as "1 min ago" may take another line, larger letters move all of them.
function keepWhatStayed(call, box) {
  const folds = [...call.querySelectorAll("details")];
  const moved = folds.find((each, place) => each.open !== layout.open[place]);
  const top = moved === undefined ? box.height : Math.max(0, moved.getBoundingClientRect().top - box.top);
  const isSame = layout.width === innerWidth && (moved !== undefined || Math.abs(box.height - layout.height) <= layout.height / 10);
  seenTo = seenTo.map((seen) => (isSame ? Math.min(seen, top) : 0));
  layout = { width: innerWidth, height: box.height, open: folds.map((each) => each.open) };
}

function onScreen() {
  const call = $("[data-must-see]", main());
  if (call === null || document.hidden) return null;
  const box = call.getBoundingClientRect();
  keepWhatStayed(call, box);
  const { offsetLeft, offsetTop, width, height } = visualViewport;
  const bottom = Math.min(offsetTop + height, screenBottom());
  return {
    call, width: box.width, height: box.height,
    left: offsetLeft - box.left, right: offsetLeft + width - box.left,
    from: Math.max(0, offsetTop - box.top), to: Math.min(box.height, bottom - box.top),
  };
}

// What the bar of a small screen covers is not on the screen.
function screenBottom() {
  const link = $("[data-unseen]", main());
  if (link !== null && !("state" in link.dataset)) link.hidden = false; // it takes its room before anything counts
  return innerHeight - ($("[data-bar]", main())?.offsetHeight ?? 0);
}

const shows = (look, column) => {
  const middle = (look.width * (column + 0.5)) / COLUMNS;
  return look.left <= middle && middle <= look.right;
};

// What both looks show; scrolling to the call ends within a pixel of it.
function count(look, other) {
  const [from, to] = [Math.max(look.from, other.from), Math.min(look.to, other.to)];
  seenTo = seenTo.map((seen, column) => {
    const isNext = to > from && from <= seen + 1 && shows(look, column) && shows(other, column);
    return isNext ? Math.max(seen, to) : seen;
  });
  look.call.dataset.seenTo = Math.round(Math.min(...seenTo));
  tellUnseen(look.call, look.height);
}

// The bar says which arguments were not on the screen yet, and leads there.
function tellUnseen(call, height) {
  const link = $("[data-unseen]", main());
  const to = Math.min(...seenTo);
  const state = `${Math.round(to)} ${Math.round(height)} ${unopened(call) === null}`;
  if (link === null || link.dataset.state === state) return;
  link.dataset.state = state;
  link.hidden = to >= height - 2 && unopened(call) === null;
  if (link.hidden) return;
  const top = call.getBoundingClientRect().top;
  const isUnseen = (row) => row.getBoundingClientRect().bottom - top > to || unopened(row) !== null;
  const unseen = [...call.querySelectorAll("dt")].filter((each) => isUnseen(each.parentElement));
  const first = unseen[0]?.textContent.trim().slice(0, 40);
  const rest = unseen.length > 1 ? ` and ${unseen.length - 1} more` : "";
  link.replaceChildren("Not seen yet: ", ...(first ? [visibleLine(first), rest] : ["the end of the call"]));
}

function lookAtRest() {
  const look = onScreen();
  if (look !== null) count(look, look);
}

function lookInMotion() {
  const look = onScreen();
  if (look !== null && lastLook !== null) count(look, lastLook);
  lastLook = look;
}

const unopened = (part) => $("details[data-must-open]:not([open])", part);
// Of what an edit changes, that is not sent yet.
const unopenedEdit = () => $(".edits details[data-must-open]:not([open])", main());

function isSeen() {
  const look = onScreen();
  if (unopenedEdit() !== null) return false;
  return look === null || (unopened(look.call) === null && Math.min(...seenTo) >= look.height - 2);
}

// How long the page was shown, without the time in which it was hidden.
let looked = { ms: 0, since: null };

function lookFrom(ms) {
  looked = { ms, since: document.hidden ? null : performance.now() };
}

const lookedMs = () => looked.ms + (looked.since === null ? 0 : performance.now() - looked.since);

// How much of the call was on the screen, or of one of several calls that are reviewed together.
function seenPercent(part) {
  const call = $("[data-must-see]", main());
  if (call === null) return "";
  const box = part.getBoundingClientRect();
  const seen = Math.min(...seenTo) - (box.top - call.getBoundingClientRect().top);
  if (unopened(part) === null && seen >= box.height - 2) return 100;
  return Math.floor(Math.min(99, Math.max(0, (100 * seen) / box.height)));
}

// It goes with the decision.
function tellLook(form) {
  onScreen(); // what has moved since the last look does not count
  const time = $("[name=looked_ms]", form);
  if (time !== null) time.value = Math.min(MOST_LOOKED_MS, Math.round(lookedMs()));
  for (const field of form.querySelectorAll("[data-seen]")) {
    const id = field.dataset.seen;
    const part = id ? $(`[data-of="${CSS.escape(id)}"]`, main()) : $("[data-must-see]", main());
    if (part !== null) field.value = seenPercent(part);
  }
}

document.addEventListener("visibilitychange", () => lookFrom(lookedMs()));

// Open the next fold that must be read, and go to where reading stopped, with some lines from before it.
function showUnseen() {
  const edit = unopenedEdit();
  if (edit !== null) {
    for (let fold = edit; fold !== null; fold = fold.parentElement.closest("details")) fold.open = true;
    edit.scrollIntoView({ block: "start", behavior: "instant" });
    const words = "A part of what your edit changes was folded. It is open now: read it to its end.";
    toast(`Not approved. ${words}`);
    say(`${words} Then approve.`);
    return;
  }
  const { call, height } = onScreen();
  const line = parseFloat(getComputedStyle(call).lineHeight) || 20;
  const lines = Math.max(1, Math.round((height - Math.min(...seenTo)) / line));
  const fold = unopened(call);
  if (fold !== null) fold.open = true;
  onScreen();
  const top = call.getBoundingClientRect().top + Math.min(...seenTo) - Math.min(60, innerHeight / 4);
  scrollBy({ top, behavior: "instant" });
  const words = fold === null ? `Scroll to the end: ${lines} more ${lines === 1 ? "line" : "lines"}.` : "A part of the call was folded. It is open now: read it to its end.";
  toast(`Not approved. ${words}`);
  say(`There is more of the call below. ${words} Then approve.`);
}

// A word about what a press did not do, where everyone sees it.
let toastTimer = null;

function toast(text) {
  clearTimeout(toastTimer);
  const line = $("[data-why-not]");
  line.textContent = text;
  line.hidden = false;
  toastTimer = setTimeout(() => { line.hidden = true; }, TOAST_MS);
}

// Without this script, what must be read is open.
function closeFolds(part) {
  for (const fold of part.querySelectorAll("details[data-must-open]")) fold.open = false;
}

function toggleFolds() {
  const link = $("[data-whole]", main());
  if (link !== null) { link.click(); return; }
  const folds = [...main().querySelectorAll("details.fold")];
  const open = folds.some((each) => !each.open);
  for (const each of folds) each.open = open;
  if (folds.length > 0) say(open ? "Everything is unfolded." : "Long parts are folded.");
}

function nextChange() {
  const changes = [...main().querySelectorAll("[data-change]")];
  if (changes.length === 0) return;
  const next = (changes.indexOf(document.activeElement) + 1) % changes.length;
  const change = changes[next];
  for (let fold = change.closest("details"); fold !== null; fold = fold.parentElement.closest("details")) fold.open = true;
  change.focus({ preventScroll: true });
  change.scrollIntoView({ block: "center", behavior: "instant" });
  say(`Change ${next + 1} of ${changes.length}.`);
}

for (const target of [window, visualViewport]) {
  for (const type of ["scroll", "resize"]) {
    target.addEventListener(type, () => { clearTimeout(resting); resting = setTimeout(lookAtRest, REST_MS); }, { passive: true });
  }
}

document.addEventListener("click", (event) => {
  const isRefused = event.target.closest?.("[data-needs-seen], [data-unseen]") ? !isSeen()
    : event.target.closest?.("[data-needs-unfolded]") && unopenedEdit() !== null;
  if (!isRefused) return;
  event.preventDefault();
  event.stopPropagation();
  showUnseen();
}, true);

/* Keys */

let armed = null;
let disarmTimer = null;

function disarm() {
  if (armed === null) return;
  clearTimeout(disarmTimer);
  armed.button.classList.remove("armed");
  clearTimeout(armed.ready);
  delete armed.button.dataset.ready;
  armed.button.replaceChildren(...armed.label);
  $("[data-toast]").hidden = true;
  armed = null;
}

function isOnScreen(element) {
  const box = element.getBoundingClientRect();
  const shown = Math.min(box.bottom, innerHeight) - Math.max(box.top, 0);
  return shown >= Math.min(box.height, innerHeight * 0.3);
}

const ANSWERS = "[data-form=answer] button[name=answer-choice], [data-form=answer] :is(input:not([type=hidden]), textarea, select)";

function approve(event) {
  const button = $("[data-approve]:not([hidden]), [data-approve-edited]:not([hidden])", main());
  const call = $("[data-must-see]", main());
  if (button === null) $(ANSWERS, main())?.focus();
  if (button === null && $("[data-whole]", main()) !== null) say("A part of the call is not on this page. Press f for all of it.");
  if (button === null || call === null || button.matches(":disabled")) return;
  // Of several calls the last ones may be above the buttons; that all of them were on the screen is checked below.
  if (main().dataset.page !== "bulk" && !isOnScreen(call)) {
    disarm();
    call.scrollIntoView({ block: "start" });
    say("This is the call. Press a to approve it.");
    return;
  }
  if (!isSeen()) {
    disarm();
    showUnseen();
    return;
  }
  const isEdited = "edited" in button.dataset;
  const confirmation = document.getElementById(isEdited ? `${button.value === "raw" ? "edit-json" : "edit"}-confirm` : "approve-confirm");
  if (confirmation !== null) {
    if (isEdited) show("edit");
    confirmation.focus();
    return;
  }
  if (armed?.button === button) {
    if (event.timeStamp - armed.at < BOUNCE_MS) return;
    disarm();
    button.form.requestSubmit(button);
    return;
  }
  const ready = setTimeout(() => { button.dataset.ready = "yes"; }, BOUNCE_MS + 20);
  armed = { button, label: [...button.childNodes], at: event.timeStamp, ready };
  const what = isEdited ? button.textContent.trim().toLowerCase() : "approve";
  button.textContent = `Press a again to ${what}`;
  button.classList.add("armed");
  // Never scroll to the button: on a small screen that would move the call away, and what is approved must stay in view.
  button.focus({ preventScroll: true });
  $("[data-toast]").hidden = false;
  say(`Press a again to ${what}.`);
  disarmTimer = setTimeout(disarm, ARMED_MS);
}

// The server takes no approval for some seconds. The button counts them; without this script the server says so again.
function waitForButtons() {
  for (const button of main().querySelectorAll("button[data-wait]")) {
    const label = [...button.childNodes];
    const until = performance.now() + Number(button.dataset.wait) * 1000;
    delete button.dataset.wait;
    button.dataset.waits = "yes";
    const tick = () => {
      const left = Math.ceil((until - performance.now()) / 1000);
      button.disabled = left > 0;
      button.replaceChildren(...label, left > 0 ? ` (in ${left} s)` : "");
      if (left > 0) setTimeout(tick, 250);
      else { delete button.dataset.waits; tellEdits(); say("You can approve it now."); }
    };
    tick();
  }
}

function mark(link) {
  $(".marked")?.classList.remove("marked");
  const row = link?.closest(".row");
  if (!row) return;
  row.classList.add("marked");
  row.scrollIntoView({ block: "nearest" });
  link.focus({ preventScroll: true });
}

function move(by) {
  const links = [...document.querySelectorAll("[data-rows] [data-open]")].filter((link) => link.checkVisibility?.() ?? true); // not folded
  if (links.length === 0) return;
  const at = links.findIndex((link) => link.closest(".marked"));
  mark(links[at < 0 ? (by > 0 ? 0 : links.length - 1) : Math.min(links.length - 1, Math.max(0, at + by))]);
}

// Select all of a group, or none if all are.
function pickGroup() {
  const boxes = [...($(".marked")?.closest("[data-group]")?.querySelectorAll("[data-pick]") ?? [])];
  if (boxes.length === 0) return;
  const wanted = boxes.some((box) => !box.checked);
  for (const box of boxes) box.checked = wanted;
  say(wanted ? `${boxes.length} selected.` : "None of this group is selected.");
}

function show(id) {
  const details = document.getElementById(id);
  if (details === null) return;
  details.open = true;
  $("input:not([type=hidden]), textarea, select", details)?.focus();
}

// What is chosen from a list goes into its field, where it can be changed before it is sent.
document.addEventListener("change", (event) => {
  const field = document.getElementById(event.target.dataset?.fills ?? "");
  if (field === null || event.target.value === "") return;
  field.value = event.target.value;
  event.target.value = "";
  field.focus();
});

// A link to something that is folded up unfolds it.
document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href^='#']");
  const [, id] = link?.getAttribute("href").split("#") ?? [];
  const target = id ? document.getElementById(id) : null;
  const isFold = target instanceof HTMLDetailsElement;
  if (target === null || !(isFold || "problem" in link.dataset)) return;
  event.preventDefault(); // following it would take the focus away again
  for (let fold = target?.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
  if (isFold) show(id);
  else (target?.matches("fieldset") ? $("input:not([type=hidden]), textarea, select", target) : target)?.focus();
});

const KEYS = {
  j: () => move(1),
  k: () => move(-1),
  x: () => { const box = $(".marked [data-pick]"); if (box !== null) { box.checked = !box.checked; say(box.checked ? "Selected." : "Not selected."); } },
  X: pickGroup,
  Enter: () => $(".marked [data-open]")?.click(),
  a: approve,
  f: toggleFolds,
  m: nextChange,
  e: () => show("edit"),
  c: () => $(".claim [value=claim]")?.click(),
  w: () => $("#comment")?.focus(),
  g: () => show("grant"),
  r: () => $("#reject-message")?.focus(),
  b: () => $("[data-step]")?.click(),
  z: () => $("[data-withdraw]")?.focus(),
  n: () => $("[data-next]")?.click(),
  u: () => $("[data-up]")?.click(),
  "/": () => $("#search")?.select(),
  "?": () => $("#help").showModal(),
};

const keysOff = () => { try { return localStorage.getItem(KEYS_OFF) === "yes"; } catch { return false; } };

// Keys are the letters that they type. A layout of other letters lacks them, so the key in the same place counts. Some of
// its keys type punctuation (Hebrew has ' in place of w), which is known once one of its letters was typed.
let hasOtherLetters = false;

function keyOf(event) {
  const { key, code, shiftKey } = event;
  if (/^\p{L}$/u.test(key)) hasOtherLetters = !/\p{Script=Latin}/u.test(key);
  if (!hasOtherLetters || [...key].length !== 1 || key in KEYS) return key;
  if (code === "Slash" && key === "\u061f") return "?"; // Arabic
  const letter = /^Key([A-Z])$/.exec(code)?.[1];
  if (letter === undefined) return key;
  return shiftKey ? letter : letter.toLowerCase();
}

// The name of the tool, typed out, is the confirmation: Enter after it presses its button. In other fields it does nothing.
document.addEventListener("keydown", (event) => {
  const field = event.target;
  if (event.key !== "Enter" || event.isComposing || !(field instanceof HTMLInputElement) || !field.form?.matches("#decision form")) return;
  event.preventDefault();
  if (!field.name.endsWith("-confirm") || field.value.trim() === "") return;
  const buttons = [...(field.form?.elements ?? [])];
  buttons.find((each) => each.dataset.confirmed === field.name && !each.matches(":disabled"))?.click();
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") { disarm(); if (isTyping()) document.activeElement.blur(); return; }
  if (event.ctrlKey || event.metaKey || event.altKey || event.getModifierState("AltGraph") || event.isComposing) return;
  const key = keyOf(event);
  if (event.repeat && key === "a") { if (armed !== null) armed.at = event.timeStamp; return; } // held down
  if (isTyping() || $("dialog[open]") !== null || (keysOff() && key !== "?")) return;
  if (key !== "a") disarm();
  const action = KEYS[key];
  // Enter on a button or link does what the browser does.
  if (!action || (key === "Enter" && document.activeElement !== document.body && document.activeElement !== main())) return;
  event.preventDefault();
  if (performance.now() >= inertUntil) action(event);
});

function offerHelp() {
  const button = $("[data-help]");
  if (button === null) return;
  button.hidden = false;
  button.addEventListener("click", () => $("#help").showModal());
}
const keysOn = $("[data-keys-on]");
keysOn.checked = !keysOff();
keysOn.addEventListener("change", () => {
  try { localStorage.setItem(KEYS_OFF, keysOn.checked ? "no" : "yes"); } catch { /* no storage: keys stay as they are */ }
});

// Back from a request, the list is where it was left.
if (location.hash.startsWith("#rq_")) mark($("[data-open]", document.getElementById(location.hash.slice(1)) ?? document.createElement("i")));
setInterval(tellPresence, PRESENCE_MS);
void tellPresence();
tellCount();
const trySound = $("[data-try-sound]");
if (trySound !== null) {
  trySound.hidden = false;
  trySound.addEventListener("click", ring);
}

function startPage() {
  waitForButtons();
  tellEdits();
  closeFolds(main());
  lookFrom(Number($("[name=looked_ms]", main())?.value) || 0); // more than 0 on a page that shows a form again
  lookAtRest();
}

startPage();
offerHelp();
if (document.body.dataset.seq || main().dataset.page === "logged-in") tabs.postMessage("logged in");
if (main().dataset.page === "logged-in") close();
setInterval(lookInMotion, LOOK_MS);
listen();
document.documentElement.dataset.ready = "yes";
