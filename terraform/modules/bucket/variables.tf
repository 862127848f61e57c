variable "name" {
  description = "Name of the bucket. It should hold logs only: the lifecycle rules cover all of it."
  type        = string

  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$", var.name))
    error_message = "A bucket name has 3 to 63 characters of a-z, 0-9, dot and hyphen, and begins and ends with a letter or digit."
  }
}

variable "prefix" {
  description = "Where the log lies in the bucket: empty, or a path that ends in a slash (logs/). The same as in modules/roles."
  type        = string
  default     = ""

  validation {
    condition     = var.prefix == "" || can(regex("^([^/*?]+/)+$", var.prefix))
    error_message = "The prefix is empty or ends in a slash, and has no empty part, * or ?."
  }
}

variable "kms_key_arn" {
  description = "Encrypt with this KMS key instead of the keys of S3 (AES256)."
  type        = string
  default     = null
}

variable "noncurrent_days" {
  description = "How long `tiered repair` can bring back a deleted or damaged segment. A scrub of all segments (check --read-data) must take less."
  type        = number
  default     = 30

  validation {
    condition     = var.noncurrent_days >= 1
    error_message = "Noncurrent versions are kept for at least one day."
  }
}

variable "noncurrent_root_days" {
  description = "How long all versions of an overwritten root are kept; its newest old version stays for noncurrent_days. Each costs its size until then."
  type        = number
  default     = 7

  validation {
    condition     = var.noncurrent_root_days >= 1
    error_message = "Noncurrent versions are kept for at least one day."
  }
}

variable "abort_multipart_days" {
  description = "Uploads without an answer for this long are thrown away. Longer than any outage after which an uploader goes on."
  type        = number
  default     = 7

  validation {
    condition     = var.abort_multipart_days >= 1
    error_message = "Multipart uploads are kept for at least one day."
  }
}

variable "force_destroy" {
  description = "Let terraform destroy delete a bucket that is not empty."
  type        = bool
  default     = false
}

variable "tags" {
  description = "Tags of the bucket."
  type        = map(string)
  default     = {}
}
