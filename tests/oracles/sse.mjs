// Reads event streams, one a line of standard input in hexadecimal; prints what the parser made of each, as JSON.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

// The package lies where the set-up put it, not beside this file.
const { createParser } = createRequire(process.argv[2])("eventsource-parser");

for await (const line of createInterface({ input: process.stdin })) {
  const seen = [];
  const parser = createParser({ onEvent: (event) => seen.push([event.event ?? "message", event.data]) });
  // As a fetch body is read: decoded with the stream's state kept, the byte order mark removed.
  const decoder = new TextDecoder("utf-8");
  parser.feed(decoder.decode(Buffer.from(line, "hex"), { stream: true }));
  // A carriage return at the end waits for a line feed; the parser is never told that the stream has ended.
  parser.feed(":\n");
  console.log(JSON.stringify({ "eventsource-parser": seen }));
}
