// A NestJS microservice using nest-nsq-transport, with the command line and the pipes of common.py.
'use strict'

const {parseArgs} = require('node:util')
const path = require('node:path')
const {batches} = require('./common.js')

const load = (name) => require(path.join(process.env.NSQCY_NODE_MODULES, name))
load('reflect-metadata')
const {Controller, Logger, Module} = load('@nestjs/common')
const {NestFactory} = load('@nestjs/core')
const {Ctx, EventPattern, Payload} = load('@nestjs/microservices')
const {NSQClient, NSQStrategy} = load('nest-nsq-transport')

Logger.overrideLogger(false) // it would write to the pipe

function send(message) {
  const head = Buffer.alloc(4)
  head.writeInt32BE(message.rawMessage.length)
  process.stdout.write(Buffer.concat([head, message.rawMessage]))
}

// What a TypeScript compiler makes of a class with decorators.
function appModule(args) {
  class Handlers {
    handle(payload, context) {
      send(context.message)
      if (args.requeue !== undefined && context.message.attempts === 1) throw new Error('requeue')
    }

    discarded(payload, context) {
      process.stdout.write(Buffer.alloc(4)) // an empty record
      send(context.message)
    }
  }
  function subscribe(name, pattern) {
    const method = Object.getOwnPropertyDescriptor(Handlers.prototype, name)
    Payload()(Handlers.prototype, name, 0)
    Ctx()(Handlers.prototype, name, 1)
    EventPattern(pattern)(Handlers.prototype, name, method)
  }
  subscribe('handle', `${args.topic}/${args.channel}`)
  if (args.attempts !== '0') subscribe('discarded', `${args.topic}/${args.channel}/discard`)
  Controller()(Handlers)
  class App {}
  Module({controllers: [Handlers]})(App)
  return App
}

async function consume(args) {
  const strategy = new NSQStrategy({
    deserializer: {deserialize: (message, {pattern}) => ({data: message.body, pattern})},
    defaultChannelOptions: {
      nsqdTCPAddresses: [args.address],
      maxInFlight: Number(args.rdy),
      maxAttempts: Number(args.attempts),
      requeueParams: [Number(args.requeue), false],
    },
  })
  const app = await NestFactory.createMicroservice(appModule(args), {strategy})
  process.stdin.resume()
  process.stdin.on('end', () => app.close().then(() => process.exit(0)))
  await app.listen()
}

async function publish(args) {
  const client = new NSQClient({nsqdURL: args.address, serializer: {serialize: ({data}) => data}})
  await client.connect()
  for await (const batch of batches(Number(args.batch))) {
    const data = batch.length === 1 ? batch[0] : batch
    await client.emit(args.topic, data).toPromise().then(
      () => console.log('OK'),
      (error) => console.log(`failed: ${error}`),
    )
  }
  process.exit(0)
}

const text = (value) => ({type: 'string', default: value})
const {values, positionals} = parseArgs({
  allowPositionals: true,
  options: {
    address: text(),
    topic: text(),
    channel: text(),
    rdy: text('1'),
    requeue: text(),
    attempts: text('0'),
    batch: text('1'),
  },
})
positionals[0] === 'consume' ? consume(values) : publish(values)
