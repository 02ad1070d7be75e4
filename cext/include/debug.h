/* NSQCY_DEBUG=1 compiles in invariant checks and live-object counters. */
#ifndef NSQCY_DEBUG
#define NSQCY_DEBUG 0
#endif
