# Laid over examples/basic by terraform/test: one host name instead of one per bucket. The endpoint and the
# credentials come from the environment.
provider "aws" {
  s3_use_path_style = true
}
