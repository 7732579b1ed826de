/*
 * Times in the reader's zone from the first paint on. The page waits for this script before it paints; each <time> is
 * told as soon as it is in the page, by the parser or by a swap. Without it, the server's words stay, which name UTC.
 */

"use strict";

{
  const readersZone = new Intl.DateTimeFormat("sv-SE", { // Swedish dates are ISO 8601's, as the server writes them
    year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short",
  });

  const span = (seconds) => {
    const whole = Math.max(0, Math.floor(seconds));
    for (const [size, unit] of [[86_400, "d"], [3_600, "h"], [60, "min"]]) {
      if (whole >= size) return `${Math.floor(whole / size)} ${unit}`;
    }
    return `${whole} s`;
  };

  const words = (time, exact) => {
    const [seconds, told] = [(Date.parse(time.dateTime) - Date.now()) / 1000, time.dataset];
    if ("ago" in told) return `${span(-seconds)} ago`;
    if ("until" in told) return seconds > 0 ? `in ${span(seconds)}` : "now";
    const clock = "minutes" in told ? exact.replace(/:\d\d /, " ") : exact;
    return clock.startsWith(`${told.day} `) ? clock.slice(told.day.length + 1) : clock; // the reader knows which day it is
  };

  const tell = (time) => {
    const exact = readersZone.format(new Date(time.dateTime));
    if (!("zoned" in time.dataset)) time.title = `${exact} (${time.title})`;
    time.dataset.zoned = "";
    const text = words(time, exact);
    if (time.textContent !== text) time.textContent = text;
  };

  const TIMES = "time[title]";
  const tellIn = (node) => {
    const place = node instanceof Element ? node : node.parentElement; // the parser can add a text, or the rest of one, after its element
    const around = place?.closest(TIMES);
    if (around) tell(around);
    else if (node === place) for (const time of node.querySelectorAll(TIMES)) tell(time);
  };
  new MutationObserver((changes) => {
    for (const { type, target, addedNodes } of changes) for (const node of type === "characterData" ? [target] : addedNodes) tellIn(node);
  }).observe(document, { childList: true, characterData: true, subtree: true });

  const again = (kinds) => { for (const time of document.querySelectorAll(kinds)) tell(time); };
  setInterval(again, 15_000, "time[data-ago], time[data-until]");
  setInterval(again, 1000, "time[data-countdown]");
}
