"""Sources: strategies that can be asked what may follow any run of tokens, so that several share one draft."""
