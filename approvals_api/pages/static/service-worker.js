/*
 * Shows Turngate's notifications while no page is open, and opens what they are about. It keeps nothing: it answers no
 * request of a page and stores no copy of one, so what a page shows always comes from the server.
 */

self.addEventListener("push", (event) => {
  const { title, body, tag, path, waiting } = event.data.json();
  const shown = self.registration.showNotification(title, {
    body, tag, renotify: true, data: { path }, icon: new URL("static/icon-192.png", self.registration.scope).href,
  });
  event.waitUntil(Promise.all([shown, self.navigator.setAppBadge?.(waiting)]));
});

async function show(path) {
  const address = new URL(`.${path}`, self.registration.scope); // whose path the server doesn't say
  if (!address.href.startsWith(self.registration.scope)) return null;
  const pages = await self.clients.matchAll({ type: "window", includeUncontrolled: true });
  const open = pages.find((page) => page.url === address.href);
  return open ? open.focus() : self.clients.openWindow(address.href);
}

self.addEventListener("notificationclick", (event) => {
  event.notification.close();
  event.waitUntil(show(event.notification.data.path));
});
