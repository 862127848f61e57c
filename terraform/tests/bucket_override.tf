# The local server knows no newer_noncurrent_versions: without this the apply waits for it until it times out.

resource "aws_s3_bucket_lifecycle_configuration" "log" {
  rule {
    id     = "noncurrent"
    status = "Enabled"
    filter {}

    noncurrent_version_expiration {
      noncurrent_days = var.noncurrent_days
    }

    expiration {
      expired_object_delete_marker = true
    }
  }
}
