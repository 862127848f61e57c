output "name" {
  description = "Name of the bucket."
  value       = aws_s3_bucket.log.id
}

output "arn" {
  description = "ARN of the bucket."
  value       = aws_s3_bucket.log.arn
}

output "prefix" {
  description = "Where the log lies in the bucket."
  value       = var.prefix
}

output "url" {
  description = "What programs are given as the remote: s3://bucket/prefix."
  value       = trimsuffix("s3://${aws_s3_bucket.log.id}/${var.prefix}", "/")
}

output "kms_key_arn" {
  description = "The KMS key, or null."
  value       = var.kms_key_arn
}

output "policy" {
  description = "The bucket policy, as JSON."
  value       = jsonencode(local.policy)
}
