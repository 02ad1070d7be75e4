// A consumer and a producer using nsqjs, with the command line and the pipes of common.py.
'use strict'

const {parseArgs} = require('node:util')
const path = require('node:path')
const nsq = require(path.join(process.env.NSQCY_NODE_MODULES, 'nsqjs'))
const {batches} = require('./common.js')

const PAUSE = 300 // ms between two TOUCHes

// nsqjs rejects undefined options.
function connection(args) {
  const codec = args.codec ? {[args.codec]: true} : {}
  const secret = args.secret ? {authSecret: args.secret} : {}
  return {tls: args.tls, tlsVerification: false, ...codec, ...secret}
}

function send(message) {
  const head = Buffer.alloc(4)
  head.writeInt32BE(message.rawMessage.length)
  process.stdout.write(Buffer.concat([head, message.rawMessage]))
}

function finishLater(message, touches) {
  if (touches === 0) return message.finish()
  message.touch()
  setTimeout(() => finishLater(message, touches - 1), PAUSE)
}

function consume(args) {
  const reader = new nsq.Reader(args.topic, args.channel, {
    ...(args.lookupds
      ? {lookupdHTTPAddresses: args.lookupds.split(',')}
      : {nsqdTCPAddresses: [args.address]}),
    maxInFlight: Number(args.rdy),
    heartbeatInterval: Number(args.heartbeat),
    lookupdPollInterval: 1, // seconds, also between attempts to reconnect
    ...connection(args),
  })
  reader.on('error', (error) => console.error(String(error)))
  reader.on('message', (message) => {
    send(message)
    if (args.requeue !== undefined && message.attempts === 1) {
      message.requeue(Number(args.requeue), false)
    } else {
      finishLater(message, Number(args.touches))
    }
  })
  reader.connect()
  process.stdin.resume()
  process.stdin.on('end', () => process.exit(0))
}

async function publish(args) {
  const [host, port] = args.address.split(':')
  const options = {heartbeatInterval: Number(args.heartbeat), ...connection(args)}
  const writer = new nsq.Writer(host, Number(port), options)
  writer.on('error', (error) => console.error(String(error)))
  const ready = new Promise((resolve) => writer.once('ready', resolve))
  writer.connect()
  await ready
  for await (const batch of batches(Number(args.batch))) {
    await new Promise((resolve) => {
      const answered = (error) => {
        console.log(error ? `failed: ${error}` : 'OK')
        resolve()
      }
      if (args.defer !== undefined) {
        // A list, because nsqjs refuses a single body, contrary to its documentation.
        writer.deferPublish(args.topic, batch, Number(args.defer), answered)
      } else {
        writer.publish(args.topic, batch.length === 1 ? batch[0] : batch, answered)
      }
    })
  }
  process.exit(0)
}

const text = (value) => ({type: 'string', default: value})
const {values, positionals} = parseArgs({
  allowPositionals: true,
  options: {
    address: text(),
    lookupds: text(),
    topic: text(),
    heartbeat: text('30'),
    secret: text(),
    tls: {type: 'boolean', default: false},
    codec: text(),
    channel: text(),
    rdy: text('1'),
    requeue: text(),
    touches: text('0'),
    batch: text('1'),
    defer: text(),
  },
})
positionals[0] === 'consume' ? consume(values) : publish(values)
