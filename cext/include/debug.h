/* NSQCY_DEBUG=1 compiles invariant checks and live-object counters in. */
#ifndef NSQCY_DEBUG
#define NSQCY_DEBUG 0
#endif
