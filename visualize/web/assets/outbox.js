// Sends the page's messages (see page.js): an event of this component, whose value is the message as JSON.
window.tilescopePost = (event, message) => {
  props.value = JSON.stringify(message);
  trigger(event);
};
document.dispatchEvent(new Event("tilescope:outbox"));
