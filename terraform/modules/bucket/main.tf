# A bucket for a tiered log: versioned, encrypted, private, reached over TLS only, and refusing unconditional writes.

locals {
  objects = "${aws_s3_bucket.log.arn}/${var.prefix}"
  # Mutable keys are replaced by compare-and-swap, all others are created once: nothing is ever written blindly.
  # Uploads of parts carry no condition, their completion does: hence s3:ObjectCreationOperation.
  policy = {
    Version = "2012-10-17"
    Statement = [
      {
        Sid       = "TlsOnly"
        Effect    = "Deny"
        Principal = "*"
        Action    = "s3:*"
        Resource  = [aws_s3_bucket.log.arn, "${aws_s3_bucket.log.arn}/*"]
        Condition = { Bool = { "aws:SecureTransport" = "false" } }
      },
      {
        Sid       = "ConditionalWritesOnly"
        Effect    = "Deny"
        Principal = "*"
        Action    = "s3:PutObject"
        Resource = [
          "${local.objects}topics/*",
          "${local.objects}??/*/root",
          "${local.objects}??/*/positions",
          "${local.objects}??/*/p/*",
          "${local.objects}??/*/s/*",
        ]
        Condition = {
          Null = { "s3:if-none-match" = "true", "s3:if-match" = "true" }
          Bool = { "s3:ObjectCreationOperation" = "true" }
        }
      },
    ]
  }
}

resource "aws_s3_bucket" "log" {
  bucket        = var.name
  force_destroy = var.force_destroy
  tags          = var.tags
}

resource "aws_s3_bucket_ownership_controls" "log" {
  bucket = aws_s3_bucket.log.id

  rule {
    object_ownership = "BucketOwnerEnforced"
  }
}

resource "aws_s3_bucket_public_access_block" "log" {
  bucket                  = aws_s3_bucket.log.id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_versioning" "log" {
  bucket = aws_s3_bucket.log.id

  versioning_configuration {
    status = "Enabled"
  }
}

resource "aws_s3_bucket_server_side_encryption_configuration" "log" {
  bucket = aws_s3_bucket.log.id

  rule {
    apply_server_side_encryption_by_default {
      sse_algorithm     = var.kms_key_arn == null ? "AES256" : "aws:kms"
      kms_master_key_id = var.kms_key_arn
    }
    bucket_key_enabled = var.kms_key_arn != null # one KMS request per bucket key, not per object
  }
}

resource "aws_s3_bucket_lifecycle_configuration" "log" {
  bucket = aws_s3_bucket.log.id

  rule {
    id     = "abort-multipart"
    status = "Enabled"
    filter {}

    abort_incomplete_multipart_upload {
      days_after_initiation = var.abort_multipart_days
    }
  }

  # A segment is written once: its only old version is the newest old one, which this rule spares. A root has many.
  rule {
    id     = "noncurrent-roots"
    status = "Enabled"
    filter {}

    noncurrent_version_expiration {
      noncurrent_days           = var.noncurrent_root_days
      newer_noncurrent_versions = 1
    }
  }

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

  # A group's positions change with each commit. No repair needs an older one.
  rule {
    id     = "noncurrent-groups"
    status = "Enabled"

    filter {
      prefix = "${var.prefix}groups/"
    }

    noncurrent_version_expiration {
      noncurrent_days = 1
    }
  }

  # No rule expires current objects: only the maintainer knows which segments the catalog still names.
  depends_on = [aws_s3_bucket_versioning.log]
}

resource "aws_s3_bucket_policy" "log" {
  bucket     = aws_s3_bucket.log.id
  policy     = jsonencode(local.policy)
  depends_on = [aws_s3_bucket_public_access_block.log]
}
