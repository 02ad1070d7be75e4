"""Upgrades of one nsqd in place, one after the other, under the load of real client libraries."""
