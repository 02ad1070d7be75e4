// Consumers, producers and HTTP calls using nsq-strategies, with the command line and the pipes of
// common.py.
'use strict'

const {parseArgs} = require('node:util')
const path = require('node:path')
const readline = require('node:readline')
const strategies = require(path.join(process.env.NSQCY_NODE_MODULES, 'nsq-strategies'))
const {batches} = require('./common.js')

function send(message) {
  const head = Buffer.alloc(4)
  head.writeInt32BE(message.rawMessage.length)
  process.stdout.write(Buffer.concat([head, message.rawMessage]))
}

function consume(args) {
  const consumer = new strategies.Consumer(args.topic, args.channel, {
    ...(args.lookupds
      ? {lookupdHTTPAddresses: args.lookupds} // separated by commas
      : {nsqdTCPAddresses: [args.address]}),
    maxInFlight: Number(args.rdy),
    maxAttempts: Number(args.attempts),
    lookupdPollInterval: 1, // seconds, also between attempts to reconnect
  })
  consumer.consume((message) => {
    send(message)
    if (args.requeue !== undefined && message.attempts === 1) {
      message.requeue(Number(args.requeue), false)
    } else {
      message.finish()
    }
  })
  if (args.attempts !== '0') {
    consumer.toRx('discard').subscribe((message) => {
      process.stdout.write(Buffer.alloc(4)) // an empty record
      send(message)
    })
  }
  // An error without a listener would end the process.
  consumer.toRx('error').subscribe({error: (error) => console.error(String(error))})
  process.stdin.resume()
  process.stdin.on('end', () => process.exit(0))
}

async function publish(args) {
  const [nsqdHost, tcpPort] = args.address.split(':')
  const producer = new strategies.Producer(
    args.lookupds
      ? {lookupdHTTPAddresses: args.lookupds.split(',')}
      : {nsqdHost, tcpPort: Number(tcpPort)},
    {strategy: args.strategy},
  )
  await producer.connect()
  const options = {
    delay: Number(args.defer),
    maxFanoutNodes: Number(args.nodes),
    retry: args.retries !== '0' && {retries: Number(args.retries), minTimeout: 10, maxTimeout: 1000},
  }
  for await (const batch of batches(Number(args.batch))) {
    // A list if deferred: nsqjs refuses a single body then, contrary to its documentation.
    const bodies = batch.length === 1 && !options.delay ? batch[0] : batch
    await producer.produce(args.topic, bodies, options).then(
      () => console.log('OK'),
      (error) => console.log(`failed: ${error}`),
    )
  }
  process.exit(0)
}

// Make the calls in the input, and write the status and the content of each answer.
async function call(args) {
  const interfaces = {
    nsqd: () => new strategies.Nsqd(`http://${args.address}`),
    lookupd: () => new strategies.Lookupd({baseUrl: `http://${args.lookupds}/`}),
  }
  for await (const line of readline.createInterface({input: process.stdin})) {
    const [name, method, ...values] = JSON.parse(line)
    const answer = await interfaces[name]()[method](...values).catch((error) => error.response)
    console.log(JSON.stringify([answer.status, answer.data]))
  }
}

const text = (value) => ({type: 'string', default: value})
const {values, positionals} = parseArgs({
  allowPositionals: true,
  options: {
    address: text(''),
    lookupds: text(),
    topic: text(),
    channel: text(),
    rdy: text('1'),
    requeue: text(),
    attempts: text('0'),
    batch: text('1'),
    defer: text('0'),
    strategy: text(),
    nodes: text('0'),
    retries: text('0'),
  },
})
;({consume, publish, call})[positionals[0]](values)
