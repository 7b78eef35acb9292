// Browsers start no workers for pages opened from disk, and the search needs one: run its script in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.waiting = []
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      this.frame.reply = data => this.dispatchEvent(new MessageEvent("message", { data }))
      this.frame.srcdoc =
        `<script>window.postMessage = data => frameElement.reply(data)</script><script src="${url}"></script>`
      this.frame.onload = () => {
        this.loaded = true
        for (const data of this.waiting) this.postMessage(data)
      }
      document.body.append(this.frame)
    }

    postMessage(data) {
      if (this.loaded) this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }))
      else this.waiting.push(data)
    }

    terminate() {
      this.frame.remove()
    }
  }
}
