"""Split attention: a prefix without a mask and a small masked tail, merged by log-sum-exp."""
