// Runs Perfetto's trace processor, compiled to WebAssembly, under node.
//
// node trace_processor.js FOLDER REQUESTS REPLIES: FOLDER holds engine_bundle.js and its .wasm, as
// Perfetto's web page does. REQUESTS are messages of its RPC protocol, each behind its length in
// four bytes, lowest first; REPLIES is the stream that comes back.
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const [folder, requests, replies] = process.argv.slice(2);
const near = (name) => fs.readFileSync(path.join(folder, path.basename(String(name))));
// The bundle is a worker's: make this look like one, and not like node.
process.type = "renderer";
globalThis.self = globalThis;
globalThis.location = { href: "file:///engine_bundle.js" };
globalThis.WorkerGlobalScope = function () {};
globalThis.importScripts = function () {};
globalThis.XMLHttpRequest = class {
  open(method, name) {
    this.name = name;
  }
  send() {
    this.response = new Uint8Array(near(this.name)).buffer;
  }
};

const output = fs.openSync(replies, "w");
const port = { postMessage: (bytes) => fs.writeSync(output, Buffer.from(bytes)) };

vm.runInThisContext(near("engine_bundle.js").toString());
self.onmessage({ data: port });

// It is ready for requests when what it waits for, all of which is there, has come round.
setTimeout(() => {
  const data = fs.readFileSync(requests);
  for (let at = 0; at < data.length; ) {
    const end = at + 4 + data.readUInt32LE(at);
    port.onmessage({ data: new Uint8Array(data.subarray(at + 4, end)) });
    at = end;
  }
  process.exit(0);
});
