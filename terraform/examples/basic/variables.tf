variable "bucket" {
  description = "Name of the bucket; also the first part of the names of policies and roles."
  type        = string
}

variable "region" {
  description = "Where the bucket lies."
  type        = string
  default     = "us-east-1"
}

variable "kms_key_arn" {
  description = "Encrypt with this KMS key instead of the keys of S3."
  type        = string
  default     = null
}
