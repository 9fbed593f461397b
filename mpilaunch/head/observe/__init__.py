"""What a launch reports: progress, timeline, explanation of a failure, JSON report. Nothing here changes what a launch does."""
