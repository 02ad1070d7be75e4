"""What pages show: functions of what was fetched."""
