// Reads what a gateway sent to an engine with Node's HTTP server. Input and output as those of read.py.
import { createServer } from "node:http";
import { createInterface } from "node:readline";
import { Duplex } from "node:stream";

function read(data) {
  return new Promise((resolve) => {
    const out = [];
    let open = 0;
    let ended = false;
    const settle = () => ended && open === 0 && resolve(out);
    const server = createServer((request, response) => {
      open += 1;
      const parts = [];
      request.on("data", (part) => parts.push(part));
      request.on("end", () => {
        out.push([request.method, request.url, Buffer.concat(parts).toString("hex")]);
        response.end();
        open -= 1;
        settle();
      });
    });
    server.on("clientError", (error) => resolve({ error: `${error.code}: ${error.message}` }));
    const socket = new Duplex({
      read() {},
      write(_chunk, _encoding, done) {
        done();
      },
    });
    socket.setTimeout = () => socket;
    socket.setNoDelay = () => socket;
    socket.setKeepAlive = () => socket;
    server.emit("connection", socket);
    socket.push(data);
    socket.push(null);
    socket.on("end", () => setImmediate(() => { ended = true; settle(); }));
  });
}

for await (const line of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(await read(Buffer.from(line.trim(), "hex"))));
}
