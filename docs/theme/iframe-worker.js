// Search in a site that is opened from a file: browsers start no workers there, so the worker's script runs in a frame
// that nobody sees. On a server the browser's own workers are used.
"use strict";
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(script) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.srcdoc = `<script src="${new URL(script, location.href)}"></script>`;
      this.frame.addEventListener("load", () => this.begin());
      document.body.append(this.frame);
      // What the script says to its page; set before the script runs.
      this.frame.contentWindow.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
    }

    begin() {
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.loaded = true;
      this.waiting.splice(0).forEach((data) => this.postMessage(data));
    }

    postMessage(data) {
      if (!this.loaded) return void this.waiting.push(data);
      const inside = this.frame.contentWindow;
      inside.dispatchEvent(new inside.MessageEvent("message", { data }));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
