// A producer using squeaky, with the command line and the pipes of common.py.
'use strict'

const {parseArgs} = require('node:util')
const path = require('node:path')
const {Publisher} = require(path.join(process.env.NSQCY_NODE_MODULES, 'squeaky'))
const {batches} = require('./common.js')

async function publish(args) {
  const [host, port] = args.address.split(':')
  const publisher = new Publisher({host, port: Number(port), topic: args.topic})
  publisher.on('error', (error) => console.error(String(error)))
  for await (const batch of batches(Number(args.batch))) {
    try {
      // squeaky publishes a list with MPUB, but omits the count if the list has one element.
      await publisher.publish(batch.length === 1 ? batch[0] : batch)
      console.log('OK')
    } catch (error) {
      console.log(`failed: ${error}`)
    }
  }
  process.exit(0)
}

const {values} = parseArgs({
  allowPositionals: true,
  options: {
    address: {type: 'string'},
    topic: {type: 'string'},
    batch: {type: 'string', default: '1'},
  },
})
publish(values)
