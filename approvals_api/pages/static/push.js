/* The account page's script: subscribe this browser. What it finds out goes into the form, which is sent like any other. */

const form = document.querySelector("form[data-push]");
const words = document.querySelector("[data-push-words]");

function bytes(base64url) {
  return Uint8Array.from(atob(base64url.replaceAll("-", "+").replaceAll("_", "/")), (char) => char.charCodeAt(0));
}

function isSame(one, other) {
  return one !== null && one.byteLength === other.byteLength && new Uint8Array(one).every((each, place) => each === other[place]);
}

async function subscription(key) {
  const registration = await navigator.serviceWorker.register(new URL("../service-worker.js", import.meta.url));
  await navigator.serviceWorker.ready;
  const held = await registration.pushManager.getSubscription();
  if (held !== null && isSame(held.options.applicationServerKey, key)) return held;
  await held?.unsubscribe(); // of a key that this server no longer has
  return registration.pushManager.subscribe({ userVisibleOnly: true, applicationServerKey: key });
}

async function subscribe() {
  if (await Notification.requestPermission() !== "granted") {
    words.textContent = "This browser doesn't let Turngate notify you. Allow notifications for this site in its settings, then try again.";
    return;
  }
  try {
    const { endpoint, keys } = (await subscription(bytes(form.dataset.push))).toJSON();
    Object.assign(form.elements.endpoint, { value: endpoint });
    Object.assign(form.elements.p256dh, { value: keys.p256dh });
    Object.assign(form.elements.auth, { value: keys.auth });
  } catch (error) {
    words.textContent = `This browser can't be notified: ${error.message}`;
    return;
  }
  form.submit();
}

if (form !== null && window.isSecureContext && "serviceWorker" in navigator && "PushManager" in window) {
  form.hidden = false;
  words.textContent = "";
  form.addEventListener("submit", (event) => { event.preventDefault(); void subscribe(); });
} else if (form !== null && !window.isSecureContext) {
  words.textContent = "Browsers allow notifications only for pages that come by https.";
} else if (form !== null) {
  words.textContent = "This browser knows no notifications by push. On an iPhone or iPad, add Turngate to the home screen first.";
}
