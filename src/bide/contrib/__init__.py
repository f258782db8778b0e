"""What bide brings to other libraries; each package here needs the extra of its name."""
