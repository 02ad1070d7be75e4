// Code shared by the JavaScript client programs: reading their input, as common.py does.
'use strict'

// Yield the bodies to publish as they arrive, in lists of `size`.
async function* batches(size) {
  let input = Buffer.alloc(0)
  let batch = []
  for await (const piece of process.stdin) {
    input = Buffer.concat([input, piece])
    while (input.length >= 4 && input.length >= 4 + input.readInt32BE(0)) {
      const end = 4 + input.readInt32BE(0)
      batch.push(input.subarray(4, end))
      input = input.subarray(end)
      if (batch.length === size) {
        yield batch
        batch = []
      }
    }
  }
  if (batch.length) yield batch
}

module.exports = {batches}
