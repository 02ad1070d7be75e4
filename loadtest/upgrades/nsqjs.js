// The same as clients.py, with nsqjs: node nsqjs.js JSON. Prints the record of record.py.
'use strict'

const path = require('node:path')
const nsq = require(path.join(process.env.NSQCY_NODE_MODULES, 'nsqjs'))

const TICK = 10 // ms
const PATIENCE = 20000 // ms for the last messages
const SHOWN = 5 // errors

const job = JSON.parse(process.argv[2])
const [host, port] = job.address.split(':')
const options = {
  ...(job.codec ? {[job.codec]: true} : {}),
  ...(job.ca ? {tls: true, tlsVerification: false} : {}),
}

let published = 0
const acknowledged = new Set()
const received = new Map()
const errors = []
const slowest = Array.from({length: job.writers}, () => ({}))

const lost = () => [...acknowledged].filter((body) => !received.has(body)).length

for (let i = 0; i < job.readers; i++) {
  const reader = new nsq.Reader(job.topic, 'c', {
    nsqdTCPAddresses: job.address,
    maxInFlight: 100,
    ...options,
  })
  reader.on('error', (error) => errors.push(String(error)))
  reader.on('nsqd_closed', () => errors.push('a reader was disconnected'))
  reader.on('message', (message) => {
    const body = message.body.toString()
    received.set(body, (received.get(body) || 0) + 1)
    message.finish()
  })
  reader.connect()
}

let closed = false
process.stdin.resume()
process.stdin.on('end', () => {
  closed = true
  const deadline = Date.now() + PATIENCE
  const look = () => {
    if (lost() && Date.now() < deadline) setTimeout(look, 100)
    else write()
  }
  setTimeout(look, 1000) // the last publishes are answered
})

for (let i = 0; i < job.writers; i++) {
  const writer = new nsq.Writer(host, Number(port), options)
  writer.on('error', (error) => errors.push(String(error)))
  writer.on('closed', () => errors.push('a writer was disconnected'))
  writer.on('ready', () => repeat(i, writer))
  writer.connect()
}

function repeat(number, writer) {
  let last = Date.now()
  let credit = 0
  const ticks = setInterval(() => {
    if (closed) return clearInterval(ticks)
    const now = Date.now()
    credit += ((now - last) / 1000) * (job.rate / job.writers)
    last = now
    for (; credit >= 1; credit--) publish(number, writer)
  }, TICK)
}

function publish(number, writer) {
  const body = String(++published)
  const began = Date.now() / 1000
  writer.publish(job.topic, body, (error) => {
    if (error) return errors.push(String(error))
    acknowledged.add(body)
    const second = Math.floor(began)
    slowest[number][second] = Math.max(slowest[number][second] || 0, Date.now() / 1000 - began)
  })
}

function write() {
  const record = {
    published,
    acknowledged: acknowledged.size,
    errors: errors.length,
    examples: errors.slice(0, SHOWN),
    lost: lost(),
    twice: [...received.values()].filter((count) => count > 1).length,
    slowest,
  }
  process.stdout.write(JSON.stringify(record) + '\n', () => process.exit(0))
}
